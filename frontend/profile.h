#pragma once

#include <torch/csrc/utils/pybind.h>

#include "ir/trace.h"
#include "remote/client.h"
#include "remote/event_log.h"

// torch.remote.profile: starts and stops the recording of events, here and on the workers, and gives what was recorded
// to Python (torch_remote/profiler.py), which makes a trace of it.
namespace torch_remote::frontend {

// Adds profile_start and profile_stop to the module.
void bind_profile(py::module& module);

// The user's line that waits, if a profile wants to know it. Without a lock held.
ir::SourceRef wait_line();

// A wait of the user's code, as long as this object lives.
class WaitSpan {
 public:
  WaitSpan(const char* reason, const ir::SourceRef& line) : span_(remote::Event::Kind::kWait) {
    if (remote::Event* event = span_.event()) {
      event->name = reason;
      event->source = line;
    }
  }

 private:
  remote::EventSpan span_;
};

// A worker has just been connected to: it records too, if a profile is being recorded. Never waits for long.
void profile_connected(remote::Client& worker) noexcept;
// A worker is about to be ended: asks it for what it recorded.
void profile_ending(remote::Client& worker) noexcept;

}  // namespace torch_remote::frontend
