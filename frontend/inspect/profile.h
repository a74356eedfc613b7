#pragma once

#include <torch/csrc/utils/pybind.h>

#include <vector>

#include "ir/trace.h"
#include "remote/client/client.h"
#include "remote/client/event_log.h"

// Starts and stops the recording of events, here and on the workers: for torch.remote.profile, where Python
// (torch_remote/profiler.py) makes a trace of what was recorded, and for torch.profiler (kineto.cpp).
namespace torch_remote::frontend {

// The worker's clock is ahead of ours by least to most ns, at the time `at`.
struct ClockSample {
  uint64_t at = 0;
  int64_t least = 0, most = 0;
};

// What one worker did.
struct WorkerRecording {
  c10::DeviceIndex device = 0;
  uint64_t session = 0;
  std::string description;
  std::vector<ClockSample> clock;
  remote::WorkerProfile recorded;
  Status status;  // of asking for it
  bool stopped = false;
};

// Times are CLOCK_MONOTONIC of this process, in ns; those of `workers` are their own.
struct Recording {
  uint64_t begin = 0, end = 0;
  remote::EventLog::Recorded client;
  std::vector<WorkerRecording> workers;
  bool interrupted = false;  // by Ctrl-C, while it was ended
};

// Sends what is recorded so far, then starts. False if a recording is going on. Without the GIL.
bool start_recording(uint64_t limit);
// Everything that was recorded. What the worker is still at work on is waited for; if that fails, the rest is given
// nevertheless. Without the GIL.
Recording stop_recording();

// Adds profile_start and profile_stop to the module.
void bind_profile(py::module& module);

}  // namespace torch_remote::frontend
