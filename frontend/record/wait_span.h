#pragma once

#include "frontend/source/source.h"
#include "ir/trace.h"
#include "remote/client/event_log.h"

namespace torch_remote::frontend {

// The user's line that waits, if a profile is recorded. Call it with no lock held.
inline ir::SourceRef wait_line() { return remote::EventLog::on() ? user_line() : ir::SourceRef(); }

// A wait of user code, for the lifetime of this object.
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

}  // namespace torch_remote::frontend
