#include "remote/client/device_events.h"

#include "remote/client/channel.h"

namespace torch_remote::remote {

Status DeviceEvents::record(uint64_t* ticket) {
  const auto encode = [&] { channel_.builder.Finish(wire::CreateRecordEvent(channel_.builder)); };
  return channel_.send_message(wire::Type::kRecordEvent, true, nullptr, encode, ticket);
}

bool DeviceEvents::is_reached(uint64_t ticket) {
  if (channel_.is_abandoned()) return true;
  channel_.replies.drain();
  return channel_.replies.has(ticket);
}

Status DeviceEvents::wait(uint64_t ticket, const KeepWaiting& keep_waiting, RecordedEvent* event) {
  if (channel_.is_abandoned()) return Channel::forked();
  Frame frame;
  OpError none;  // this reply has no error
  const bool waits = !is_reached(ticket);
  Status status = waits ? channel_.wait(ticket, keep_waiting, &frame, &none, /*keep_expecting=*/true)
                        : channel_.replies.wait(ticket, keep_waiting, &frame, &none);
  if (!status) return status;
  const auto* reply = flatbuffers::GetRoot<wire::RecordEventReply>(frame.control.data());  // verified on receipt
  *event = {reply->device_time_ns(), reply->failed()};
  return {};
}

void DeviceEvents::forget(uint64_t ticket) noexcept {
  if (!channel_.is_abandoned()) channel_.replies.drop_reply(ticket);
}

bool DeviceEvents::is_idle() {
  if (channel_.is_abandoned()) return true;
  const Replies& replies = channel_.replies;
  channel_.replies.drain();
  return !replies.health() || (!replies.has_background_work() && replies.acknowledged() == replies.last_sent());
}

}  // namespace torch_remote::remote
