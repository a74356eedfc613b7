#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "remote/capture/capture.h"
#include "tools/runs/case.h"
#include "tools/runs/execute.h"

// Does on a device what a capture's client did.
namespace torch_remote::tools {

struct ReplayCounts {
  uint64_t programs = 0, runs = 0, left_out = 0, ops = 0, uploads = 0, reads = 0;
  uint64_t bytes_uploaded = 0, bytes_read = 0;
};

class Replayer {
 public:
  explicit Replayer(Device& device) : device_(device) {}

  // Performs one event. Reads ask the device only if `answer` is given; it gets their bytes.
  Status perform(const remote::CaptureEvent& event, Bytes* answer = nullptr);
  // Waits for everything.
  Status finish();

  // The inputs of a run that comes next, as buffers of the device. False if the capture lacks one: it was to be made by
  // a program that could not be built, or by a run that lacked one itself. Such runs are left out.
  bool inputs(const remote::RunEvent& run, Inputs* inputs) const;
  // The run with its inputs' bytes. kInvalid if one is not there, or an op that failed should have made it.
  Status extract(const remote::RunEvent& run, RunCase* found);

  const ReplayCounts& counts() const { return counts_; }
  // Errors of the worker that the capture does not have, in order; each message once.
  const std::vector<std::string>& new_errors() const { return new_errors_; }
  // Whether the last event led to such an error, also if its message is in the list already.
  bool failed() const { return failed_; }

 private:
  struct Buffer {
    uint64_t id = 0;  // on the device
    uint64_t nbytes = 0;
  };

  Status load(const remote::CapturedProgramPtr& program);
  Status run(const remote::RunEvent& event);
  Status read(const remote::ReadEvent& event, Bytes* answer);
  void free(uint64_t captured);
  void expect(const std::optional<remote::CapturedError>& error);
  void note(const WorkerError& error);

  Device& device_;
  std::map<uint64_t, Buffer> buffers_;        // by the capture's ids
  std::map<uint32_t, LoadedGraph> programs_;  // by number
  std::set<std::string> expected_;            // messages of errors
  std::set<std::string> noted_;
  std::vector<std::string> errors_;
  std::vector<std::string> new_errors_;
  ReplayCounts counts_;
  bool failed_ = false;
};

}  // namespace torch_remote::tools
