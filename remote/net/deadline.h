#pragma once

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <utility>

#include "ir/status.h"
#include "remote/transport/transport.h"

namespace torch_remote::remote {

// Limits how long connecting may take, and lets the user interrupt it.
class Deadline {
 public:
  using Clock = std::chrono::steady_clock;

  explicit Deadline(std::chrono::milliseconds time, KeepWaiting keep_waiting = {})
      : deadline_(Clock::now() + time), keep_waiting_(std::move(keep_waiting)) {}

  // The deadline of the first of `parts` equal parts of the time that is left.
  Deadline first_of(int parts) const {
    return Deadline(std::chrono::duration_cast<std::chrono::milliseconds>(deadline_ - Clock::now()) / parts,
                    keep_waiting_);
  }

  // Calls keep_waiting. Returns kInterrupted if that returns false, and kTimeout after the deadline.
  Status check() const {
    if (keep_waiting_ && !keep_waiting_()) return {ErrorCode::kInterrupted, "remote: connecting was interrupted"};
    if (Clock::now() >= deadline_) return {ErrorCode::kTimeout, "remote: timeout"};
    return {};
  }

  // Waits for one of the events (POLLIN, POLLOUT), with at most kWaitStep between two checks. Also returns ok if the
  // descriptor has an error or was hung up. Returns kInternal if poll() fails.
  Status wait(int descriptor, short events) const {
    for (;;) {
      if (Status status = check(); !status) return status;
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline_ - Clock::now());
      pollfd polled{descriptor, events, 0};
      const auto step = std::clamp<std::chrono::milliseconds>(left, std::chrono::milliseconds(0), kWaitStep);
      const int ready = poll(&polled, 1, static_cast<int>(step.count()));
      if (ready > 0) return {};
      if (ready < 0 && errno != EINTR) return Status::internal("remote: poll failed while connecting");
    }
  }

 private:
  const Clock::time_point deadline_;
  const KeepWaiting keep_waiting_;
};

}  // namespace torch_remote::remote
