#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <utility>

#include "ir/status.h"
#include "worker/device/device.h"
#include "worker/server/inbox.h"
#include "worker/server/replies.h"
#include "worker/session/session.h"

namespace torch_remote::worker {

// The client's messages whose work on the device is not done, in order. Replies to them are sent in this order, too.
//
// For the session's thread. Functions return the error of a finish() that failed, or kLost if the device is lost. A
// lost device reports all its tickets as done, but its memory is gone. So no finish() is called then, and the session
// must end.
class PendingMessages {
 public:
  PendingMessages(Device& device, Session& session, Replies& replies)
      : device_(device), session_(session), replies_(replies) {}

  bool empty() const { return pending_.empty(); }
  // Calls finish() once the device has done the work that is queued now, and then marks the message as done. This
  // happens at once if no work and no message is pending, else in settle() or drain(). `finish` is copyable, takes no
  // arguments and returns a Status.
  template <typename F>
  Status when_done(uint64_t sequence, F&& finish);
  // Finishes the messages whose work is done.
  Status settle();
  // Waits until the device has done all work, and finishes all messages.
  Status drain();
  // Wakes the inbox once the first message's work is done. Does nothing if no message is pending.
  void wake_when_done(Inbox& inbox);

 private:
  struct Pending {
    Ticket ticket = 0;
    uint64_t sequence = 0;
    std::function<Status()> finish;
  };

  Status check_device(Ticket ticket);

  Device& device_;
  Session& session_;
  Replies& replies_;
  std::deque<Pending> pending_;
  Ticket notified_ = 0;  // The device wakes the inbox at this ticket.
};

template <typename F>
Status PendingMessages::when_done(uint64_t sequence, F&& finish) {
  const Ticket ticket = device_.record();
  if (pending_.empty() && (ticket == 0 || device_.done(ticket))) {
    if (Status status = check_device(ticket); !status.ok()) return status;
    session_.settle();
    Status status = finish();
    replies_.mark_done(sequence);
    return status;
  }
  pending_.push_back({ticket, sequence, std::forward<F>(finish)});
  return {};
}

}  // namespace torch_remote::worker
