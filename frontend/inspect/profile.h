#pragma once

#include <torch/csrc/utils/pybind.h>

#include <vector>

#include "ir/trace.h"
#include "remote/client/client.h"
#include "remote/client/event_log.h"

// Starts and stops the recording of events in this process and on the workers. It serves torch.remote.profile, where
// Python (torch_remote/profiling) makes a trace of the events, and torch.profiler (kineto.cpp).
namespace torch_remote::frontend {

// At the time `at` of our clock, the worker's clock is ahead of ours by `min_offset` to `max_offset` ns.
struct ClockSample {
  uint64_t at = 0;
  int64_t min_offset = 0, max_offset = 0;
};

// The recording of one worker.
struct WorkerRecording {
  c10::DeviceIndex device = 0;
  uint64_t session = 0;
  std::string description;
  std::vector<ClockSample> clock;
  remote::WorkerProfile recorded;
  Status status;  // result of the request for `recorded`
  bool stopped = false;
};

// Times are CLOCK_MONOTONIC of this process in ns, except those of `workers`, which are in each worker's clock.
struct Recording {
  uint64_t begin = 0, end = 0;
  remote::EventLog::Recorded client;
  std::vector<WorkerRecording> workers;
  bool interrupted = false;  // by Ctrl-C, while the recording was stopped
};

// Flushes the recorded ops, then starts. Returns false if a recording is in progress. Call it without the GIL.
bool start_recording(uint64_t limit);
// Waits for the workers' pending ops, then returns all events. If the wait fails, it returns the events that it has.
// Call it without the GIL.
Recording stop_recording();

// Adds profile_start and profile_stop to the module.
void bind_profile(py::module& module);

}  // namespace torch_remote::frontend
