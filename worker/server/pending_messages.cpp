#include "worker/server/pending_messages.h"

#include <spdlog/spdlog.h>

namespace torch_remote::worker {

Status PendingMessages::check_device(Ticket ticket) {
  const Status status = device_.wait(ticket);
  if (!status.ok()) spdlog::error("{}", status.message());
  return status;
}

Status PendingMessages::settle() {
  while (!pending_.empty() && device_.done(pending_.front().ticket)) {
    if (Status status = check_device(pending_.front().ticket); !status.ok()) return status;
    session_.settle();
    const Pending next = std::move(pending_.front());
    pending_.pop_front();
    if (Status status = next.finish(); !status.ok()) return status;
    replies_.mark_done(next.sequence);
  }
  return {};
}

Status PendingMessages::drain() {
  if (Status status = device_.wait(device_.record()); !status.ok()) return status;
  session_.settle();
  return settle();
}

void PendingMessages::wake_when_done(Inbox& inbox) {
  if (pending_.empty() || pending_.front().ticket == notified_) return;
  notified_ = pending_.front().ticket;
  device_.notify(notified_, [&inbox] { inbox.wake(); });
}

}  // namespace torch_remote::worker
