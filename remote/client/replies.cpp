#include "remote/client/replies.h"

#include <algorithm>
#include <iterator>
#include <type_traits>
#include <utility>

#include "remote/client/event_log.h"
#include "remote/wire/message.h"

namespace torch_remote::remote {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kMaxMissing = 64;  // number of failed runs whose errors reads can still report

bool is_timeout(const Status& status) { return status.code() == ErrorCode::kTimeout; }

void log_acknowledged(const wire::Header& header) {
  Event event;
  event.kind = Event::Kind::kAcknowledged;
  event.begin = event.end = monotonic_ns();
  event.session = header.session;
  event.sequence = header.sequence;
  EventLog::add(std::move(event));
}

}  // namespace

// --- waiting ---------------------------------------------------------------------------------------------------------

Status Replies::receive_as_leader(std::unique_lock<std::mutex>& lock, std::chrono::nanoseconds timeout) {
  receiving_ = true;
  lock.unlock();
  Frame frame;
  Status status = transport_.receive(&frame, timeout);
  lock.lock();
  receiving_ = false;
  if (status.ok()) status = handle(frame);
  if (!status.ok() && !is_timeout(status)) set_lost(status);
  changed_.notify_all();
  return status;
}

template <class Done>
Status Replies::wait_until(std::unique_lock<std::mutex>& lock, const KeepWaiting* keep_waiting, Done done) {
  auto next_call = Clock::now() + kWaitStep;
  while (!done()) {
    if (!lost_) return lost_;
    if (!receiving_) {
      (void)receive_as_leader(lock, std::max<Clock::duration>(next_call - Clock::now(), Clock::duration::zero()));
    } else {
      changed_.wait_until(lock, next_call);
    }
    if (Clock::now() < next_call) continue;
    if (keep_waiting && *keep_waiting) {
      lock.unlock();
      const bool go_on = (*keep_waiting)();
      lock.lock();
      if (!go_on && !done()) return {ErrorCode::kInterrupted, "remote: interrupted while waiting for the worker"};
    }
    next_call = Clock::now() + kWaitStep;
  }
  return {};
}

Status Replies::reserve(size_t messages, size_t bytes) {
  std::unique_lock lock(mutex_);
  if (!lost_) return lost_;
  const auto there_is_room = [&] {
    if (credit_count_ + messages > credits_.size()) return false;
    return unacknowledged_bytes_ == 0 || unacknowledged_bytes_ + bytes <= kMaxUnacknowledgedBytes;
  };
  if (there_is_room()) return {};
  ++totals_.back_pressure_waits;
  const EventSpan span(Event::Kind::kBackPressure);
  return wait_until(lock, nullptr, there_is_room);
}

Status Replies::throttle(const KeepWaiting& keep_waiting) {
  std::unique_lock lock(mutex_);
  if (!lost_) return lost_;
  const auto there_is_room = [&] {
    return credit_count_ <= credits_.size() / 4 * 3 && unacknowledged_bytes_ <= kMaxUnacknowledgedBytes / 4 * 3;
  };
  if (there_is_room()) return {};
  ++totals_.back_pressure_waits;
  const EventSpan span(Event::Kind::kBackPressure);
  return wait_until(lock, &keep_waiting, there_is_room);
}

void Replies::sending(uint64_t sequence, size_t bytes) {
  std::lock_guard lock(mutex_);
  credits_[(first_credit_ + credit_count_++) % credits_.size()] = {sequence, bytes};
  unacknowledged_bytes_ += bytes;
  last_sent_ = sequence;
}

void Replies::hello_answered(uint64_t sequence) {
  std::lock_guard lock(mutex_);
  (void)acknowledge(sequence);
}

void Replies::expect(uint64_t sequence, wire::Type request) {
  std::lock_guard lock(mutex_);
  slots_[sequence].request = request;
}

void Replies::drop_reply(uint64_t sequence) {
  std::lock_guard lock(mutex_);
  const auto slot = slots_.find(sequence);
  if (slot == slots_.end()) return;
  if (slot->second.done) {
    slots_.erase(slot);
  } else {
    slot->second.unwanted = true;
  }
}

void Replies::drain() {
  std::unique_lock lock(mutex_);
  while (!receiving_ && lost_.ok() && (credit_count_ > 0 || has_background_work_)) {
    if (!receive_as_leader(lock, std::chrono::nanoseconds::zero())) return;
  }
}

bool Replies::has(uint64_t sequence) const {
  std::lock_guard lock(mutex_);
  const auto slot = slots_.find(sequence);
  return slot == slots_.end() || slot->second.done || !lost_;
}

Status Replies::take(std::unique_lock<std::mutex>& lock, uint64_t sequence, const KeepWaiting& keep_waiting,
                     bool keep_expecting, Slot* result) {
  const auto slot = slots_.find(sequence);
  if (slot == slots_.end())
    return Status::internal("remote: no reply is expected for message " + std::to_string(sequence));
  Status status = wait_until(lock, &keep_waiting, [&] { return slot->second.done; });
  if (keep_expecting && status.code() == ErrorCode::kInterrupted) return status;
  *result = std::move(slot->second);
  slots_.erase(slot);
  return status;
}

Status Replies::wait(uint64_t sequence, const KeepWaiting& keep_waiting, Frame* reply, OpError* error,
                     bool keep_expecting) {
  std::unique_lock lock(mutex_);
  Slot result;
  if (Status status = take(lock, sequence, keep_waiting, keep_expecting, &result); !status) return status;
  if (!result.error) {
    *reply = std::move(result.reply);
    return {};
  }
  *error = *std::move(result.error);
  return error->status;
}

void Replies::take_deferred(OpError* error) {
  std::lock_guard lock(mutex_);
  if (deferred_.empty()) return;
  if (!error->status) defer(std::move(*error));
  std::vector<OpError> all = std::exchange(deferred_, {});
  *error = std::move(all.front());
  error->more_errors.assign(std::make_move_iterator(all.begin() + 1), std::make_move_iterator(all.end()));
  error->omitted_errors = std::exchange(omitted_errors_, 0);
}

// --- incoming messages -----------------------------------------------------------------------------------------------

Status Replies::handle(Frame& frame) {
  totals_.bytes_received += sizeof(wire::Header) + frame.control.size();
  if (Status status = acknowledge(frame.header.sequence); !status) return status;
  has_background_work_ = (frame.header.flags & wire::kBackgroundWork) != 0;
  if (EventLog::on()) log_acknowledged(frame.header);
  switch (static_cast<wire::Type>(frame.header.type)) {
    case wire::Type::kRunReply:
      return handle_reply<wire::RunReply>(frame);
    case wire::Type::kReadReply:
      return handle_reply<wire::ReadReply>(frame);
    case wire::Type::kHasOpReply:
      return handle_reply<wire::HasOpReply>(frame);
    case wire::Type::kProfileReply:
      return handle_reply<wire::ProfileReply>(frame);
    case wire::Type::kSynchronizeReply:
      return handle_reply<wire::SynchronizeReply>(frame);
    case wire::Type::kRecordEventReply:
      return handle_reply<wire::RecordEventReply>(frame);
    case wire::Type::kCallFunctionReply:
      return handle_reply<wire::CallFunctionReply>(frame);
    case wire::Type::kStatFileReply:
      return handle_reply<wire::StatFileReply>(frame);
    case wire::Type::kMemoryReply:
      return handle_reply<wire::MemoryReply>(frame);
    case wire::Type::kShadowReply:
      return handle_reply<wire::ShadowReply>(frame);
    case wire::Type::kProfilePart:
      return handle_profile_part(frame);
    case wire::Type::kAcknowledge:
      if (const auto* acknowledge = wire::verify<wire::Acknowledge>(frame.control)) {
        store_stats(acknowledge->stats());
        return {};
      }
      break;
    default:
      break;
  }
  return Status::invalid("remote: the worker sent a message of type " + std::to_string(frame.header.type) + " and " +
                         std::to_string(frame.control.size()) + " bytes, which a worker must not send");
}

Status Replies::handle_profile_part(Frame& frame) {
  if (!wire::verify<wire::ProfileReply>(frame.control)) {
    return Status::invalid("remote: the worker's part of a profile is damaged");
  }
  const size_t events = frame.attachment ? frame.attachment->bytes().size() / sizeof(wire::ProfileEvent) : 0;
  // The part belongs to an older profile, or exceeds the limit.
  if (frame.header.sequence < profile_since_ || profile_.events.size() + events > profile_limit_) return {};
  return append_worker_profile(frame, &profile_);
}

template <class Message>
Status Replies::handle_reply(Frame& frame) {
  const auto* message = wire::verify<Message>(frame.control);
  if (!message)
    return Status::invalid("remote: the worker's reply to message " + std::to_string(frame.header.sequence) +
                           " is damaged");
  if constexpr (requires { message->stats(); }) store_stats(message->stats());
  std::optional<OpError> error = op_error(message->error());
  if constexpr (std::is_same_v<Message, wire::SynchronizeReply>) {
    if (error && message->more_errors()) {
      for (const wire::Error* other : *message->more_errors()) error->more_errors.push_back(*op_error(other));
    }
    if (error) error->omitted_errors = message->omitted_errors();
  }
  const auto slot = slots_.find(frame.header.sequence);
  if (slot == slots_.end()) {
    // the thread that sent the question was interrupted
    if (error && !message->error()->reported()) defer(*std::move(error));
    return {};
  }
  // In wire::Type, the type of a reply follows that of its request.
  if (frame.header.type != static_cast<uint8_t>(slot->second.request) + 1) {
    return Status::invalid("remote: the worker's reply to message " + std::to_string(frame.header.sequence) +
                           " has type " + std::to_string(frame.header.type) + ", but the message had type " +
                           std::to_string(static_cast<uint8_t>(slot->second.request)));
  }
  if (slot->second.unwanted) {
    slots_.erase(slot);
    return {};
  }
  slot->second.reply = std::move(frame);
  slot->second.error = std::move(error);
  slot->second.done = true;
  return {};
}

Status Replies::acknowledge(uint64_t sequence) {
  if (sequence > last_sent_) {
    return Status::invalid("remote: the worker acknowledged message " + std::to_string(sequence) +
                           ", but the last one sent was " + std::to_string(last_sent_));
  }
  acknowledged_ = std::max(acknowledged_, sequence);
  for (; credit_count_ > 0 && credits_[first_credit_].sequence <= sequence; --credit_count_) {
    unacknowledged_bytes_ -= credits_[first_credit_].bytes;
    first_credit_ = (first_credit_ + 1) % credits_.size();
  }
  return {};
}

void Replies::store_stats(const wire::WorkerStats* stats) {
  if (!stats) return;
  const auto stat = [](const wire::MemoryStat& s) {
    return MemoryStat{s.current(), s.peak(), s.allocated(), s.freed()};
  };
  totals_.memory = {stat(stats->allocated()), stat(stats->reserved()),    stat(stats->allocations()),
                    stat(stats->segments()),  stats->num_alloc_retries(), stats->num_ooms()};
  totals_.kernels_compiled = stats->kernels_compiled();
  totals_.groups_without_kernel = stats->groups_without_kernel();
  if (std::exchange(totals_.differences, stats->differences()) < stats->differences()) {
    if (const auto call = on_shadow_difference.load()) call();
  }
}

// --- profile ---------------------------------------------------------------------------------------------------------

void Replies::start_profile(uint64_t limit, uint64_t sequence) {
  std::lock_guard lock(mutex_);
  profile_ = {};
  profile_limit_ = limit;
  profile_since_ = sequence;
}

WorkerProfile Replies::take_profile() {
  std::lock_guard lock(mutex_);
  profile_limit_ = 0;
  if (!lost_) profile_.lost = lost_at_;
  return std::exchange(profile_, {});
}

// --- failures --------------------------------------------------------------------------------------------------------

std::optional<OpError> Replies::op_error(const wire::Error* error) const {
  if (!error) return std::nullopt;
  OpError result{wire::to_status(*error), {}, {}, error->skipped_updates()};
  programs_.describe(error->program(), error->record(), error->sequence(), &result.source, &result.op);
  return result;
}

void Replies::defer(OpError error) {
  constexpr size_t kMost = 256;
  omitted_errors_ += std::exchange(error.omitted_errors, 0);
  std::vector<OpError> more_errors = std::exchange(error.more_errors, {});
  deferred_.push_back(std::move(error));
  std::ranges::move(more_errors, std::back_inserter(deferred_));
  if (deferred_.size() <= kMost) return;
  omitted_errors_ += deferred_.size() - kMost;
  deferred_.resize(kMost);
}

void Replies::fail(uint64_t sequence, uint64_t first_result_id, uint64_t count, OpError error) {
  {
    std::lock_guard lock(mutex_);
    if (count > 0) failed_runs_.push_back({first_result_id, count, error});
    if (failed_runs_.size() > kMaxMissing) failed_runs_.pop_front();
    if (const auto slot = slots_.find(sequence); slot != slots_.end()) {
      slot->second.error = std::move(error);
      slot->second.done = true;
    } else {
      defer(std::move(error));
    }
  }
  changed_.notify_all();
  transport_.wake();  // the thread that receives may be the one that waits for this reply
}

std::optional<OpError> Replies::failure_of(uint64_t buffer) const {
  std::lock_guard lock(mutex_);
  for (const FailedRun& m : failed_runs_) {
    if (buffer - m.first_result_id < m.count) return m.error;
  }
  return std::nullopt;
}

void Replies::set_lost(const Status& why) {
  if (!lost_) return;
  lost_at_ = monotonic_ns();
  lost_ = {ErrorCode::kLost,
           why.message() + ". The tensors on the worker are lost; torch.remote.restart() starts a new one"};
}

void Replies::set_connection_lost(const Status& why) {
  {
    std::unique_lock lock(mutex_);
    while (!receiving_ && lost_.ok()) {  // messages from before the loss may have a better reason
      if (!receive_as_leader(lock, std::chrono::nanoseconds::zero())) break;
    }
    set_lost(why);
  }
  changed_.notify_all();
}

void Replies::end_waits(const Status& why) {
  {
    std::lock_guard lock(mutex_);
    set_lost(why);
  }
  changed_.notify_all();
  transport_.wake();
}

Status Replies::health() const {
  std::lock_guard lock(mutex_);
  return lost_;
}

bool Replies::has_background_work() const {
  std::lock_guard lock(mutex_);
  return has_background_work_;
}

bool Replies::expects_reply() const {
  std::lock_guard lock(mutex_);
  return std::ranges::any_of(slots_, [](const auto& slot) { return !slot.second.done && !slot.second.unwanted; });
}

uint64_t Replies::acknowledged() const {
  std::lock_guard lock(mutex_);
  return acknowledged_;
}

uint64_t Replies::last_sent() const {
  std::lock_guard lock(mutex_);
  return last_sent_;
}

Replies::Totals Replies::totals() const {
  std::lock_guard lock(mutex_);
  return totals_;
}

}  // namespace torch_remote::remote
