#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ir/status.h"
#include "ir/trace.h"
#include "remote/transport/transport.h"

namespace torch_remote::remote {

class Channel;

// Which runs the worker checks: it executes their steps again on a reference and compares the results.
struct ShadowSettings {
  double rate = 0;          // share of the runs, from 0 to 1
  uint64_t first_runs = 0;  // before that, so many runs whose program or choice of kernels is new
};

struct ShadowCounts {
  uint64_t runs = 0;         // runs that were checked
  uint64_t steps = 0;        // steps that were compared
  uint64_t left_out = 0;     // steps that were not: too large, or without a reference implementation
  uint64_t bytes = 0;        // bytes copied from the device
  uint64_t copying_ns = 0;   // ns that the session spent on copying
  uint64_t checking_ns = 0;  // ns that the checks took, on a thread of their own
  uint64_t differences = 0;  // steps whose results differ
};

// A step whose results differ from those of the reference, and the first of its ops that does.
struct ShadowDifference {
  std::string runner;                  // the runner that executed the step: "cuBLASLt"
  std::string op;                      // "aten::add.Tensor(f32[16], f32[16])"
  std::string what;                    // "result 0 (f32): 12 of 400 elements differ, ..."
  uint32_t record = 0;                 // of the op, in `graph`
  std::vector<ir::SourceRef> sources;  // by record of `graph`: the user's line, if it is still known
  // the step as a program of its own, with its inputs
  std::vector<uint8_t> graph;
  std::vector<int64_t> params;
  std::vector<std::vector<std::byte>> inputs;
  uint8_t math_modes = 0;
};

// The checks that the worker makes for this session. Thread safe. Functions wait for a reply.
class Shadow {
 public:
  explicit Shadow(Channel& channel) : channel_(channel) {}

  // Applies from now on. Returns kUnsupported if the worker has no reference.
  Status set(const ShadowSettings& settings, const KeepWaiting& keep_waiting);
  // Whether set() has succeeded: only then is there something to ask for.
  bool is_on() const { return on_; }
  // Sets the counts, and *difference to the oldest one that no call has returned. `wait`: until all checks are done.
  Status ask(bool wait, const KeepWaiting& keep_waiting, ShadowCounts* counts,
             std::optional<ShadowDifference>* difference);

 private:
  Status send(const ShadowSettings* settings, bool wait, const KeepWaiting& keep_waiting, Frame* reply);

  Channel& channel_;
  std::atomic<bool> on_ = false;
};

}  // namespace torch_remote::remote
