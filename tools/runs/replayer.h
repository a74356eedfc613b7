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

// Repeats on a device what a captured client did.
namespace torch_remote::tools {

struct ReplayCounts {
  // `left_out`: runs whose program or inputs were missing (Replayer::inputs).
  uint64_t programs = 0, runs = 0, left_out = 0, ops = 0, uploads = 0, reads = 0;
  uint64_t bytes_uploaded = 0, bytes_read = 0;
};

class Replayer {
 public:
  explicit Replayer(Device& device) : device_(device) {}

  // Performs one event. A read is performed only if `answer` is given, and *answer gets its bytes.
  Status perform(const remote::CaptureEvent& event, Bytes* answer = nullptr);
  // Waits until all work is done.
  Status finish();

  // The inputs of a run that is about to come, as buffers of the device. Returns false if one is missing because the
  // program or the run that makes it was left out. Such runs are left out, too.
  bool inputs(const remote::RunEvent& run, Inputs* inputs) const;
  // Extracts the run with its inputs' bytes. Returns kInvalid if an input is missing, or if an op that should have made
  // it failed.
  Status extract(const remote::RunEvent& run, RunCase* found);

  const ReplayCounts& counts() const { return counts_; }
  // Errors of the worker that the capture does not have, in order, without duplicate messages.
  const std::vector<std::string>& new_errors() const { return new_errors_; }
  // Whether the last event caused such an error, even if its message is already in the list.
  bool failed() const { return failed_; }

 private:
  struct Buffer {
    uint64_t id = 0;  // of the device
    uint64_t nbytes = 0;
  };

  Status load(const remote::CapturedProgramPtr& program);
  Status run(const remote::RunEvent& event);
  Status read(const remote::ReadEvent& event, Bytes* answer);
  void free(uint64_t captured);
  void expect(const std::optional<remote::CapturedError>& error);
  void record_error(const WorkerError& error);

  Device& device_;
  std::map<uint64_t, Buffer> buffers_;        // by the capture's ids
  std::map<uint32_t, LoadedGraph> programs_;  // by number
  std::set<std::string> expected_;            // messages of captured errors
  std::set<std::string> recorded_;
  std::vector<std::string> errors_;
  std::vector<std::string> new_errors_;
  ReplayCounts counts_;
  bool failed_ = false;
};

}  // namespace torch_remote::tools
