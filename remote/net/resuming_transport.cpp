#include "remote/net/resuming_transport.h"

#include <algorithm>
#include <utility>

namespace torch_remote::remote {
namespace {

using namespace std::chrono_literals;

// We acknowledge after this many frames or bytes, and with each heartbeat. More often would wake the sender needlessly.
constexpr uint64_t kFrames = 64;
constexpr size_t kBytes = 256 << 10;
// An end that sends, or is about to wait, acknowledges after fewer bytes, so that the other end can release memory
// soon.
constexpr size_t kBytesBeforeWaiting = 64 << 10;
// How long a sender that waits for space leaves receiving to another thread before it tries again.
constexpr auto kOtherReceives = 2ms;
constexpr int kMissed = 3;                                 // heartbeats after which a silent connection is cut
constexpr auto kFirstPause = 5ms, kLongestPause = 1000ms;  // between attempts to connect

Status timed_out() { return {ErrorCode::kTimeout, "remote: timeout"}; }

size_t bytes_of(const Frame& frame) {
  return sizeof(Frame) + frame.control.size() + (frame.attachment ? frame.attachment->bytes().size() : 0);
}

wire::Header link_header(wire::Type type) {
  wire::Header header;
  header.type = static_cast<uint8_t>(type);
  return header;
}

// Informs the other end that the session is over, unless it does not receive.
void send_closed(StreamTransport& connection) {
  bool sent = false;
  for (int i = 0; i < 100 && !sent; ++i) {
    if (!connection.send_at_once(link_header(wire::Type::kSessionClosed), {}, &sent)) break;
    if (!sent) std::this_thread::sleep_for(1ms);
  }
}

}  // namespace

ResumingTransport::ResumingTransport(Connection first, Options options, Reconnect reconnect)
    : options_(std::move(options)),
      reconnect_(std::move(reconnect)),
      description_(first.transport->description()),
      connection_(std::move(first.transport)),
      progressed_(Clock::now()),
      sent_since_(Clock::now()) {
  keeper_ = std::thread([this] { run_keeper(); });
}

ResumingTransport::~ResumingTransport() {
  ConnectionPtr connection;
  {
    std::lock_guard lock(mutex_);
    ending_ = true;
    connection = std::move(connection_);
  }
  if (options_.interrupt) options_.interrupt();
  changed_.notify_all();
  keeper_changed_.notify_all();
  keeper_.join();
  if (connection) send_closed(*connection);
}

// --- sending ---------------------------------------------------------------------------------------------------------

Status ResumingTransport::send(wire::Header header, std::span<const uint8_t> control, AttachmentPtr attachment) {
  if (control.size() > wire::kMaxControl) {
    return Status::invalid("remote: a control message has " + std::to_string(control.size()) + " bytes; the limit is " +
                           std::to_string(wire::kMaxControl));
  }
  const size_t bytes = sizeof(SentFrame) + control.size() + (attachment ? attachment->bytes().size() : 0);
  std::vector<uint8_t> copy(control.begin(), control.end());
  Lock lock(mutex_);
  for (;;) {
    if (!lost_) return lost_;
    if (sending_) {
      changed_.wait(lock);
    } else if (!fits(bytes)) {
      if (connection_ && !receiving_ && queued_ < kMaxQueued) {
        (void)take(lock, kOtherReceives, nullptr);
      } else {
        changed_.wait_for(lock, kOtherReceives);
      }
    } else {
      break;
    }
  }
  sending_ = true;
  unacknowledged_.push_back(std::make_shared<const SentFrame>(SentFrame{header, std::move(copy), attachment, bytes}));
  unacknowledged_bytes_ += bytes;
  const ConnectionPtr connection = connection_;
  Status status;
  if (connection) {
    lock.unlock();
    status = connection->send(header, control, std::move(attachment));
    lock.lock();
  }
  sending_ = false;
  changed_.notify_all();
  if (status.ok() || status.code() == ErrorCode::kLost) {
    if (!status.ok()) {
      cut_connection(connection);
    } else if (unacknowledged_received_bytes_ >= kBytesBeforeWaiting) {
      acknowledge(lock, true);
    }
    return {};
  }
  set_lost(status);
  return status;
}

void ResumingTransport::drop_acknowledged(uint64_t through) {
  if (through > acknowledged_ + unacknowledged_.size()) {
    return set_lost(Status::invalid("remote: the other end acknowledged " + std::to_string(through) + " messages of " +
                                    std::to_string(acknowledged_ + unacknowledged_.size())));
  }
  for (; acknowledged_ < through; ++acknowledged_) {
    unacknowledged_bytes_ -= unacknowledged_.front()->bytes;
    unacknowledged_.pop_front();
  }
}

// --- receiving -------------------------------------------------------------------------------------------------------

Status ResumingTransport::take(Lock& lock, std::chrono::nanoseconds timeout, Frame* frame) {
  const ConnectionPtr connection = connection_;
  receiving_ = true;
  lock.unlock();
  Frame came;
  Status status = connection->receive(&came, timeout);
  lock.lock();
  receiving_ = false;
  if (suspected_) keeper_changed_.notify_all();
  if (connection != connection_) {  // cut meanwhile; the frame is sent again
    status = timed_out();
  } else if (status.code() == ErrorCode::kLost) {
    set_broken(connection, status);
    status = timed_out();
  } else if (status.ok() && !count(came)) {
    status = lost_.ok() ? timed_out() : lost_;
  } else if (!status.ok() && status.code() != ErrorCode::kTimeout) {
    set_lost(status);
  }
  if (status.ok()) {
    if (frame && queue_.empty()) {
      *frame = std::move(came);
    } else {
      queued_ += bytes_of(came);
      queue_.push_back(std::move(came));
      status = timed_out();
    }
    acknowledge(lock, false);
  }
  changed_.notify_all();
  return status;
}

bool ResumingTransport::count(const Frame& frame) {
  switch (static_cast<wire::Type>(frame.header.type)) {
    case wire::Type::kReceivedAck:
      drop_acknowledged(frame.header.sequence);
      return false;
    case wire::Type::kSessionClosed:
      set_lost({ErrorCode::kLost, "remote: the other end has ended the session"});
      return false;
    default:
      ++received_;
      unacknowledged_received_bytes_ += bytes_of(frame);
      return true;
  }
}

void ResumingTransport::acknowledge(Lock& lock, bool now) {
  const ConnectionPtr connection = connection_;
  if (!connection || (!now && received_ - acknowledged_to_peer_ < kFrames && unacknowledged_received_bytes_ < kBytes))
    return;
  wire::Header header = link_header(wire::Type::kReceivedAck);
  const uint64_t received = header.sequence = received_;
  bool sent = false;
  lock.unlock();
  const Status status = connection->send_at_once(header, {}, &sent);
  lock.lock();
  if (!status.ok()) cut_connection(connection);
  if (!sent || connection != connection_) return;
  if (received > acknowledged_to_peer_) acknowledged_to_peer_ = received;
  unacknowledged_received_bytes_ = 0;
}

Status ResumingTransport::receive(Frame* frame, std::chrono::nanoseconds timeout) {
  *frame = Frame();  // releases an old attachment before any lock is taken
  Lock lock(mutex_);
  Clock::time_point deadline;
  bool confirmed = false;
  for (bool first = true;; first = false) {
    if (!queue_.empty()) {
      *frame = std::move(queue_.front());
      queue_.pop_front();
      queued_ -= bytes_of(*frame);
      return {};
    }
    if (!lost_) return lost_;
    if (std::exchange(woken_, false)) timeout = 0ns;
    auto left = timeout;
    if (timeout.count() > 0) {
      const auto now = Clock::now();
      if (first) deadline = now + std::min<std::chrono::nanoseconds>(timeout, std::chrono::years(1));
      left = deadline - now;
    }
    if (!first && left.count() <= 0) return timed_out();
    if (!connection_ || receiving_) {
      if (left.count() <= 0) return timed_out();
      wait_for(lock, left);
      continue;
    }
    if (left.count() > 0 && unacknowledged_received_bytes_ >= kBytesBeforeWaiting && !std::exchange(confirmed, true)) {
      if (take(lock, 0ns, frame).ok()) return {};
      if (queue_.empty() && lost_.ok()) acknowledge(lock, true);
      continue;
    }
    const Status status = take(lock, std::max<std::chrono::nanoseconds>(left, 0ns), frame);
    if (status.ok()) return status;
  }
}

void ResumingTransport::wait_for(Lock& lock, std::chrono::nanoseconds time) {
  changed_.wait_until(lock, Clock::now() + std::min<std::chrono::nanoseconds>(time, 1h));
}

// --- other requests of the user --------------------------------------------------------------------------------------

void ResumingTransport::set_spin_time(std::chrono::nanoseconds time) {
  std::lock_guard lock(mutex_);
  spin_time_ = time;
  if (connection_) connection_->set_spin_time(time);
}

void ResumingTransport::avoid_busy_cores() {
  std::lock_guard lock(mutex_);
  avoids_busy_cores_ = true;
  if (connection_) connection_->avoid_busy_cores();
}

bool ResumingTransport::is_peer(int process) const {
  ConnectionPtr connection;
  {
    std::lock_guard lock(mutex_);
    connection = connection_;
  }
  return connection && connection->is_peer(process);
}

void ResumingTransport::wake() {
  ConnectionPtr connection;
  {
    std::lock_guard lock(mutex_);
    woken_ = true;
    connection = connection_;
  }
  changed_.notify_all();
  if (connection) connection->wake();
}

void ResumingTransport::abandon() {
  if (connection_) connection_->abandon();
}

// --- connections -----------------------------------------------------------------------------------------------------

void ResumingTransport::cut_connection(const ConnectionPtr& connection) {
  if (!connection || connection != connection_) return;
  connection->disconnect();
  suspected_ = true;
  changed_.notify_all();
  keeper_changed_.notify_all();
}

void ResumingTransport::set_broken(const ConnectionPtr& connection, const Status& why) {
  if (!connection || connection != connection_) return;
  suspected_ = false;
  connection->disconnect();
  connection->wake();
  connection_ = nullptr;
  broken_why_ = why;
  broken_since_ = Clock::now();
  changed_.notify_all();
  keeper_changed_.notify_all();
}

void ResumingTransport::set_lost(const Status& why) {
  if (!lost_) return;
  lost_ = {why.code() == ErrorCode::kInvalid ? why.code() : ErrorCode::kLost, why.message()};
  if (connection_) {
    connection_->disconnect();
    connection_->wake();
  }
  changed_.notify_all();
  keeper_changed_.notify_all();
}

void ResumingTransport::run_keeper() {
  const auto tick = std::clamp<Clock::duration>(options_.heartbeat / 4, 1ms, 1s);
  Clock::duration pause = kFirstPause;
  Lock lock(mutex_);
  while (!ending_ && lost_.ok()) {
    if (connection_) {
      pause = kFirstPause;
      maintain_connection(lock);
      if (ending_ || !lost_.ok() || !connection_) continue;
      if (options_.reconnect_always) {
        try_to_reconnect(lock);
      } else {
        // While a thread receives, that thread notices that the connection was cut.
        const auto has_work = [&] { return ending_ || !lost_.ok() || !connection_ || (suspected_ && !receiving_); };
        keeper_changed_.wait_for(lock, tick, has_work);
      }
      continue;
    }
    if (Clock::now() - broken_since_ > options_.lease) {
      set_lost({ErrorCode::kLost, broken_why_.message() + "; it could not be resumed within " +
                                      std::to_string(options_.lease.count() / 1000) + " s"});
      break;
    }
    try_to_reconnect(lock);
    if (connection_ || ending_ || options_.reconnect_always) continue;
    keeper_changed_.wait_for(lock, pause, [&] { return ending_; });
    pause = std::min<Clock::duration>(2 * pause, kLongestPause);
  }
}

// Receives what no thread waits for, sends heartbeats, and checks whether the other end is alive.
void ResumingTransport::maintain_connection(Lock& lock) {
  const ConnectionPtr connection = connection_;
  while (connection == connection_ && lost_.ok() && !receiving_ && queued_ < kMaxQueued) {
    const uint64_t before = received_, known = acknowledged_;
    (void)take(lock, 0ns, nullptr);
    if (received_ == before && acknowledged_ == known) break;
  }
  if (connection != connection_ || !lost_.ok() || ending_) return;
  if (suspected_ && !receiving_) {  // the queue is full; the other end will send the rest again
    return set_broken(connection, {ErrorCode::kLost, "remote: the connection (" + description_ + ") broke"});
  }
  const auto now = Clock::now();
  if (const uint64_t sent = connection->bytes_sent(); sent != sent_) {
    sent_ = sent;
    sent_since_ = now;
  } else if (now - sent_since_ >= options_.heartbeat) {
    sent_since_ = now;
    acknowledge(lock, true);
    if (connection != connection_) return;
  }
  // If our queue is full we do not read, so the silence is ours.
  if (const uint64_t progress = connection->bytes_received(); progress != progress_ || queued_ >= kMaxQueued) {
    progress_ = progress;
    progressed_ = now;
  } else if (now - progressed_ > kMissed * options_.heartbeat) {
    set_broken(connection,
               {ErrorCode::kLost, "remote: no message arrived over the connection (" + description_ + ") for " +
                                      std::to_string(kMissed * options_.heartbeat.count()) + " ms"});
  }
}

void ResumingTransport::try_to_reconnect(Lock& lock) {
  const bool broken = !connection_;
  const auto step = std::clamp<std::chrono::milliseconds>(options_.heartbeat / 4, 1ms, broken ? 50ms : 1000ms);
  const Freeze freeze = [this] {
    std::lock_guard again(mutex_);
    set_broken(connection_, {ErrorCode::kLost, "remote: another connection took over"});
    return received_;
  };
  lock.unlock();
  Connection made;
  const Status status = reconnect_(broken, step, freeze, &made);
  lock.lock();
  if (status.ok()) return install(lock, std::move(made));
  if (status.code() == ErrorCode::kTimeout) return;
  if (status.code() == ErrorCode::kLost) {
    if (!connection_) broken_why_ = status;
    return;
  }
  if (connection_) send_closed(*connection_);  // it works, so the other end need not wait for another one
  set_lost(status);
}

void ResumingTransport::install(Lock& lock, Connection made) {
  const ConnectionPtr connection = std::move(made.transport);
  changed_.wait(lock, [&] { return !sending_; });  // soon, because the old connection was cut
  if (made.received < acknowledged_) {
    return set_lost({ErrorCode::kLost, "remote: the other end has lost messages that it acknowledged"});
  }
  drop_acknowledged(made.received);
  if (!lost_ || ending_) return;
  acknowledged_to_peer_ = received_;
  unacknowledged_received_bytes_ = 0;
  if (spin_time_.count() > 0) connection->set_spin_time(spin_time_);
  if (avoids_busy_cores_) connection->avoid_busy_cores();
  // While the keeper resends below, no other thread checks whether the other end is alive.
  connection->set_silence_limit(kMissed * options_.heartbeat);
  connection_ = connection;
  resumed_.fetch_add(1, std::memory_order_relaxed);
  progress_ = sent_ = 0;
  progressed_ = sent_since_ = Clock::now();
  // From now on other threads receive from it, including acknowledgements of resent frames. Senders wait until sends_
  // is false.
  sending_ = true;
  Status status;
  for (uint64_t next = 0; status.ok(); ++next) {
    next = std::max(next, acknowledged_);
    if (next == acknowledged_ + unacknowledged_.size()) break;
    const std::shared_ptr<const SentFrame> kept = unacknowledged_[next - acknowledged_];
    lock.unlock();
    status = connection->send(kept->header, kept->control, kept->attachment);
    lock.lock();
  }
  sending_ = false;
  changed_.notify_all();
  if (!status.ok()) cut_connection(connection);
}

}  // namespace torch_remote::remote
