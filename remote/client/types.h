#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ir/capabilities.h"
#include "ir/graph.h"
#include "ir/status.h"
#include "ir/trace.h"
#include "remote/transport/transport.h"  // KeepWaiting

// Types that several parts of the client use.
namespace torch_remote::remote {

// Limit on unacknowledged messages. It is twice the number after which the worker acknowledges (wire.fbs), so the
// worker does not run out of work while the client waits.
inline constexpr size_t kMaxUnacknowledged = 64;
// Limit on bytes of unacknowledged attachments, as of uploads; a single larger one may be in flight alone.
inline constexpr size_t kMaxUnacknowledgedBytes = size_t{512} << 20;

// Default limit on the memory of programs on a worker: enough for hundreds of the largest traces.
inline constexpr uint64_t kMaxProgramBytes = uint64_t{512} << 20;

// A failure on the worker, with the source of the op that failed.
struct OpError {
  Status status;
  ir::SourceRef source;          // of the record that failed
  std::string op;                // schema name; empty if the failure is not due to a single op
  uint64_t skipped_updates = 0;  // in-place updates that were skipped because of this failure
  // From synchronize: the other failures that no wait has reported.
  std::vector<OpError> more_errors = {};
  uint64_t omitted_errors = 0;  // number of further failures that are not listed
};

// A program to build, from a recorded trace or from a graph.
struct BuildRequest {
  uint32_t program = 0;  // its number
  const ir::Trace* trace = nullptr;
  const std::vector<uint64_t>* survivors = nullptr;  // bit i of the words: buffer i of `trace` survives
  const ir::Graph* graph = nullptr;                  // if set, used instead of a trace
  std::span<const int64_t> sample;                   // parameters of a trace's first run, or typical ones of a graph
  std::span<const ir::SourceRef> sources;            // one per record
  const ir::Capabilities* worker = nullptr;          // the worker that will execute it
  bool deterministic = false;                        // ProgramOptions
};

// Builds a program: runs on the builder's thread and sets `program` to the encoded flatbuffer. A std::exception that it
// throws fails the build.
using BuildFunction = std::function<Status(const BuildRequest& request, std::vector<uint8_t>* program)>;

// How the worker executes a program.
struct ProgramOptions {
  // Once the program is loaded, both ends spin for messages (Transport::set_spin_time), for all programs of the
  // session. This lowers the latency of calls and costs up to a millisecond of a core per wait.
  bool low_latency = false;
  // The worker may time several algorithms and keep the fastest, so the last bits of results may differ between runs.
  // Ignored if `deterministic` is set.
  bool tune = false;
  // The bits of an op's result must depend on its operands alone, so passes must not change an op because of its
  // neighbors.
  bool deterministic = false;
};

// A program that the worker has, or that is being built for it (program_cache.h). It belongs to one client. A program
// from Client::load() is for runs that are not recorded.
struct CachedProgram;
using ProgramPtr = std::shared_ptr<CachedProgram>;

// Is called, if it is set, when a message says that shadow runs have found more differences than before. It must not
// wait, and must not take a lock that a thread holds while it uses a client: it runs on any thread, with a client's
// locks held.
inline std::atomic<void (*)()> on_shadow_difference{nullptr};

}  // namespace torch_remote::remote
