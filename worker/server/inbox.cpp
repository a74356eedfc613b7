#include "worker/server/inbox.h"

#include <algorithm>
#include <utility>

#include "remote/wire/message.h"
#include "worker/device/monotonic_clock.h"

namespace torch_remote::worker {
namespace {

constexpr size_t kSmallAttachment = 32 << 10;  // Larger ones lie in the client's memory, if it is shared.
constexpr size_t kMaxAhead = 256 << 20;        // Bytes of messages that are received early during a run.
// How often a long run looks at the client's activity, and the time without a look after which nothing is known of it.
constexpr uint64_t kLookAtClient = 100'000, kForgetClient = 20'000'000;  // ns
// A client that has waited this long has stopped polling (remote/transport/wait_predictor.h) and sleeps.
constexpr uint64_t kClientLooks = 1'000'000;  // ns

// Upper bound of the memory that a message takes here until it is handled.
size_t bytes_of(const remote::Frame& frame, bool shares_memory) {
  const size_t attached = shares_memory || !frame.attachment ? kSmallAttachment : frame.attachment->bytes().size();
  return sizeof(remote::Frame) + frame.control.size() + attached;
}

}  // namespace

bool is_waited_for(const remote::Frame& frame) {
  const auto type = static_cast<wire::Type>(frame.header.type);
  return (frame.header.flags & wire::kWantsReply) != 0 && type != wire::Type::kRecordEvent &&
         type != wire::Type::kCallFunction;
}

bool Inbox::note_cancel(const remote::Frame& frame) {
  if (frame.header.type != static_cast<uint8_t>(wire::Type::kCancel)) return false;
  if (const auto* message = wire::verify<wire::Cancel>(frame.control)) {
    cancelled_ = std::max(cancelled_.load(), message->last_sequence());
  }
  return true;
}

void Inbox::receive_early() {
  looked_ = monotonic_ns();
  while (early_status_.ok() && early_bytes_ < kMaxAhead) {
    remote::Frame frame;
    Status status = transport_.receive(&frame, std::chrono::nanoseconds::zero());
    if (status.code() == ErrorCode::kTimeout) return;
    if (!status.ok()) {
      early_status_ = status;
      gone_ = status.code() == ErrorCode::kLost;
    } else if (!note_cancel(frame)) {
      note_wait(frame);
      early_waits_ += is_waited_for(frame);
      early_bytes_ += bytes_of(frame, transport_.shares_memory());
      early_.push_back(std::move(frame));
    }
  }
}

void Inbox::note_wait(const remote::Frame& frame) {
  if (is_waited_for(frame)) client_polls_ = (frame.header.flags & wire::kSenderSpins) != 0;
}

tr_client_activity Inbox::client_activity() {
  const uint64_t now = monotonic_ns();
  if (now - client_looked_ < kLookAtClient) return client_activity_;
  client_activity_ = client_load_.known() ? look_at_client(now) : TR_CLIENT_IDLE;
  if (others_ && others_->busy(now, client_load_.used(), idle_)) client_activity_ = TR_CLIENT_COMPUTING;
  client_looked_ = now;
  return client_activity_;
}

tr_client_activity Inbox::look_at_client(uint64_t now) {
  receive_early();
  if (client_resumed_ || now - client_asked_ > kForgetClient) client_load_.assume_busy(now);
  client_resumed_ = false;
  client_asked_ = now;
  if (!waited_for_ && early_waits_ == 0) {
    waits_since_ = 0;
  } else if (waits_since_ == 0) {
    waits_since_ = now;
  }
  if (!client_load_.busy(now) || (waits_since_ != 0 && (!client_polls_ || now - waits_since_ > kClientLooks))) {
    return TR_CLIENT_IDLE;
  }
  return waits_since_ != 0 ? TR_CLIENT_POLLING : TR_CLIENT_COMPUTING;
}

Status Inbox::receive(remote::Frame* frame, std::chrono::nanoseconds timeout) {
  constexpr uint64_t kLookEvery = 2'000'000;  // ns
  asked_ = monotonic_ns();
  if (asked_ - looked_ > kLookEvery) receive_early();
  if (!early_.empty()) {
    *frame = std::move(early_.front());
    early_.pop_front();
    early_bytes_ -= bytes_of(*frame, transport_.shares_memory());
    early_waits_ -= is_waited_for(*frame);
    return {};
  }
  if (!early_status_.ok()) return early_status_;
  if (woken_) timeout = std::chrono::nanoseconds::zero();  // receive_early() may have consumed the wake-up.
  for (;;) {
    Status status = transport_.receive(frame, timeout);
    if (status.ok() && note_cancel(*frame)) continue;
    idle_ += monotonic_ns() - asked_;
    return status;
  }
}

void Inbox::begin(const remote::Frame& frame) {
  current_message_ = frame.header.sequence;
  note_wait(frame);
  const bool waited = std::exchange(waited_for_, is_waited_for(frame));
  client_resumed_ |= waited && !waited_for_;
  client_looked_ = 0;
}

}  // namespace torch_remote::worker
