#include "remote/transport/stream_transport.h"

#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <mutex>
#include <utility>

#include "remote/transport/frame_parser.h"
#include "remote/transport/heap_attachment.h"
#include "remote/transport/shared_memory.h"
#include "remote/transport/transport.h"
#include "remote/transport/wait_predictor.h"

namespace torch_remote::remote {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kReceiveBuffer = 64 << 10;
constexpr size_t kMaxDescriptors = 16;  // received and not announced yet; our own ends send one at a time
// How long a sender leaves receiving to another thread before it tries again.
constexpr std::chrono::milliseconds kOtherReceives{2};
constexpr int kLookAgain = 20;  // in ms; how often a sender with a silence limit checks it
// If sched_yield returns this late, another thread needed the core.
constexpr std::chrono::microseconds kCoreNeeded{200};

Status timed_out() { return {ErrorCode::kTimeout, "remote: timeout"}; }

// Moves this thread to another core. Returns false if it may not run on any other.
bool move_to_another_core() {
  cpu_set_t allowed, others;
  const int here = sched_getcpu();
  if (here < 0 || sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return false;
  others = allowed;
  CPU_CLR(static_cast<size_t>(here), &others);
  if (CPU_COUNT(&others) == 0 || sched_setaffinity(0, sizeof(others), &others) != 0) return false;
  return sched_setaffinity(0, sizeof(allowed), &allowed) == 0;
}

}  // namespace

// Several buffers that are sent one after the other.
class StreamTransport::Pieces {
 public:
  void add(const void* data, size_t size) {
    if (size == 0) return;
    pieces_[count_++] = {const_cast<void*>(data), size};
  }
  bool empty() const { return first_ == count_; }
  std::span<const iovec> left() const { return {pieces_.data() + first_, count_ - first_}; }
  void sent(size_t bytes) {
    while (bytes > 0) {
      iovec& piece = pieces_[first_];
      const size_t n = std::min(bytes, piece.iov_len);
      piece.iov_base = static_cast<char*>(piece.iov_base) + n;
      piece.iov_len -= n;
      bytes -= n;
      if (piece.iov_len == 0) ++first_;
    }
  }

 private:
  std::array<iovec, 6> pieces_;
  size_t first_ = 0;
  size_t count_ = 0;
};

StreamTransport::StreamTransport(std::unique_ptr<ByteStream> stream, Options options)
    : stream_(std::move(stream)),
      wake_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
      memory_(std::move(options.memory)),
      max_attachment_bytes_(options.max_attachment_bytes),
      buffer_(kReceiveBuffer) {}

StreamTransport::~StreamTransport() {
  if (memory_) memory_->close();
  for (int descriptor : descriptors_) ::close(descriptor);
  ::close(wake_);
}

AttachmentPtr StreamTransport::allocate(size_t size) {
  return memory_ && size >= kSmallAttachment ? memory_->allocate(size) : pool_->allocate(size);
}

AttachmentPtr StreamTransport::share(const void* memory, size_t size, std::shared_ptr<void> owner) {
  if (memory_) return memory_->share(memory, size, std::move(owner));
  return std::make_shared<ExternalAttachment>(memory, size, std::move(owner));
}

void StreamTransport::wake() {
  const uint64_t one = 1;
  (void)!::write(wake_, &one, sizeof(one));
}

void StreamTransport::abandon() {
  ::close(wake_);
  stream_->abandon();
}

size_t StreamTransport::bytes_of(const Frame& frame) const {
  size_t bytes = sizeof(Frame) + frame.control.size();
  if (frame.attachment) {
    const size_t attached = frame.attachment->bytes().size();
    bytes += sizeof(HeapAttachment) + (!memory_ || attached < kSmallAttachment ? attached : 0);
  }
  return bytes;
}

Status StreamTransport::lost(const std::string& what) {
  if (memory_) memory_->close();
  return {ErrorCode::kLost, "remote: the connection to the other end is gone: " + what};
}

// --- sending ---------------------------------------------------------------------------------------------------------

Status StreamTransport::send(wire::Header header, std::span<const uint8_t> control, AttachmentPtr attachment) {
  if (control.size() > wire::kMaxControl) {
    return Status::invalid("remote: a control message has " + std::to_string(control.size()) + " bytes; the limit is " +
                           std::to_string(wire::kMaxControl));
  }
  header.length = static_cast<uint32_t>(control.size());
  header.checksum = wire::crc32c(control.data(), control.size());
  header.flags = static_cast<uint16_t>((header.flags & ~(wire::kAttachment | wire::kSenderSpins)) |
                                       (attachment ? wire::kAttachment : 0));
  const bool looks = spins_.load(std::memory_order_relaxed) || spin_time_.load(std::memory_order_relaxed).count() > 0;
  if ((header.flags & wire::kWantsReply) && looks) header.flags |= wire::kSenderSpins;

  std::lock_guard lock(sending_);
  if (!send_status_) return send_status_;
  AttachmentHeader attachment_header;
  std::span<const std::byte> inline_bytes;
  if (memory_ && attachment && attachment->bytes().size() >= kSmallAttachment) {
    if (Status status = export_attachment(attachment, &attachment_header); !status) return status;
  } else if (attachment) {
    inline_bytes = attachment->bytes();
    attachment_header.size = inline_bytes.size();
    attachment_header.flags = kInline;
  }
  int descriptor = -1;
  if (memory_) {
    memory_frames_.clear();
    memory_->outgoing(SIZE_MAX, memory_frames_, &descriptor);
  }
  Pieces pieces;
  pieces.add(memory_frames_.data(), memory_frames_.size());
  pieces.add(&header, sizeof(header));
  pieces.add(control.data(), control.size());
  if (attachment) {
    pieces.add(&attachment_header, sizeof(attachment_header));
    pieces.add(inline_bytes.data(), inline_bytes.size());
  }
  moved_ = UINT64_MAX;
  while (!pieces.empty() && send_status_.ok()) {
    send_status_ = write_some(pieces, descriptor);
    if (send_status_.code() == ErrorCode::kTimeout) send_status_ = wait_to_write();
  }
  if (descriptor >= 0) ::close(descriptor);
  return send_status_;
}

Status StreamTransport::export_attachment(AttachmentPtr& attachment, AttachmentHeader* header) {
  if (memory_->export_attachment(attachment, header)) return {};
  // The memory belongs to this process alone, for example to another connection, so we copy it.
  AttachmentPtr copy = memory_->allocate(attachment->bytes().size());
  if (!copy)
    return {ErrorCode::kOutOfMemory,
            "remote: no shared memory for " + std::to_string(attachment->bytes().size()) + " bytes"};
  std::ranges::copy(attachment->bytes(), copy->bytes().begin());
  attachment = std::move(copy);
  return memory_->export_attachment(attachment, header) ? Status() : lost("it was closed");
}

Status StreamTransport::write_some(Pieces& pieces, int& descriptor) {
  size_t bytes = 0;
  const Status status = stream_->write(pieces.left(), &bytes, &descriptor);
  if (status.ok()) {
    pieces.sent(bytes);
    sent_.store(sent_.load(std::memory_order_relaxed) + bytes, std::memory_order_relaxed);
    return status;
  }
  return status.code() == ErrorCode::kTimeout ? status : lost(status.message());
}

// The peer may be blocked because it is sending, too. So we receive meanwhile, as long as the queue has space.
Status StreamTransport::wait_to_write() {
  std::unique_lock receiving(receiving_, std::try_to_lock);
  if (receiving.owns_lock() && !receive_status_) receiving.unlock();  // nothing more can come
  const bool full = receiving.owns_lock() && queued_ >= kMaxQueued;   // then the silence is ours, not the other end's
  const bool pump = receiving.owns_lock() && !full;
  if (receiving.owns_lock() && !pump) receiving.unlock();  // another thread may free space
  const std::chrono::nanoseconds silence_limit = silence_limit_;
  if (silence_limit.count() > 0) {
    const uint64_t moved = bytes_sent() + bytes_received();
    const auto now = Clock::now();
    if (moved != moved_ || full) {
      moved_ = moved;
      moved_at_ = now;
    } else if (now - moved_at_ > silence_limit) {
      return lost("it made no progress");
    }
  }
  pollfd wait[] = {{stream_->output(), POLLOUT, 0}, {stream_->input(), POLLIN, 0}};
  int longest = static_cast<int>(kOtherReceives.count());
  if (pump) longest = silence_limit.count() > 0 ? kLookAgain : -1;
  const int ready = poll(wait, pump ? 2 : 1, longest);
  if (ready <= 0 || !pump || !(wait[1].revents & (POLLIN | POLLHUP))) return {};
  std::vector<std::shared_ptr<void>> released;
  const Status status = read_some();
  released.swap(released_);
  receiving.unlock();
  if (!status && status.code() != ErrorCode::kTimeout && status.code() != ErrorCode::kLost) return status;
  return {};  // if the peer is gone, the next write reports it
}

// When poll reports a stream as writable, much of its buffer is free (200 KB; of a pipe, one page). So a small message
// is sent whole.
bool StreamTransport::writable() const {
  pollfd writable{stream_->output(), POLLOUT, 0};
  return poll(&writable, 1, 0) > 0 && (writable.revents & POLLOUT);
}

void StreamTransport::flush_memory_messages() {
  if (!memory_) return;
  std::unique_lock lock(sending_, std::try_to_lock);
  if (!lock.owns_lock() || !send_status_) return;  // the sending thread sends them along
  if (!memory_->has_outgoing() || !writable()) return;
  memory_frames_.clear();
  int descriptor = -1;
  memory_->outgoing(kMaxTokens, memory_frames_, &descriptor);
  Pieces pieces;
  pieces.add(memory_frames_.data(), memory_frames_.size());
  const Status status = write_some(pieces, descriptor);
  if (!pieces.empty())
    send_status_ = lost(status.ok() ? "it accepted only a part of a small message" : status.message());
}

Status StreamTransport::send_at_once(wire::Header header, std::span<const uint8_t> control, bool* sent) {
  *sent = false;
  std::unique_lock lock(sending_, std::try_to_lock);
  if (!lock.owns_lock()) return {};
  if (!send_status_ || !writable()) return send_status_;
  header.length = static_cast<uint32_t>(control.size());
  header.checksum = wire::crc32c(control.data(), control.size());
  header.flags = 0;
  Pieces pieces;
  pieces.add(&header, sizeof(header));
  pieces.add(control.data(), control.size());
  int descriptor = -1;
  Status status = write_some(pieces, descriptor);
  if (!pieces.empty() && (status.ok() || status.code() == ErrorCode::kTimeout)) {
    status = lost("it accepted only a part of a small message");
  }
  send_status_ = status;
  *sent = status.ok();
  return status;
}

// --- receiving -------------------------------------------------------------------------------------------------------

Status StreamTransport::receive(Frame* frame, std::chrono::nanoseconds timeout) {
  *frame = Frame();                             // releases an old attachment before any lock is taken
  std::vector<std::shared_ptr<void>> released;  // destroyed after the lock is released
  std::unique_lock lock(receiving_, std::defer_lock);
  // A sender may hold the lock for as long as the other end accepts nothing. A caller with a zero timeout must not wait
  // for it.
  if (timeout.count() > 0) {
    lock.lock();
  } else if (!lock.try_lock()) {
    return timed_out();
  }
  Clock::time_point began, deadline;
  bool waits = false;               // whether the wait has begun, at `began`
  for (Clock::time_point look;;) {  // when to stop spinning; zero: do not spin
    const Status status = !frames_.empty() ? Status() : look != Clock::time_point() ? spin_until(look) : read_some();
    if (!released_.empty()) {
      released.swap(released_);
      lock.unlock();
      released.clear();
      lock.lock();
    }
    if (!frames_.empty()) {
      if (waits) {
        predictor_.record_wait(Clock::now() - began);
        spins_.store(predictor_.plan().first.count() > 0, std::memory_order_relaxed);
      }
      *frame = std::move(frames_.front());
      frames_.pop_front();
      queued_ -= bytes_of(*frame);
      return {};
    }
    if (status.ok()) continue;
    if (status.code() != ErrorCode::kTimeout) return status;
    if (timeout.count() <= 0) return timed_out();
    const auto now = Clock::now();
    if (!std::exchange(waits, true)) {
      began = now;
      deadline = now + std::min<std::chrono::nanoseconds>(timeout, std::chrono::years(1));
      flush_memory_messages();
    } else if (now >= deadline) {
      return timed_out();
    }
    Clock::time_point then = deadline;
    look = std::min(spin_until_time(began, now, &then), deadline);
    if (look > now) continue;
    look = {};
    if (!sleep_until(then)) return timed_out();
  }
}

Clock::time_point StreamTransport::spin_until_time(Clock::time_point began, Clock::time_point now,
                                                   Clock::time_point* sleep_until) const {
  const WaitPredictor::Plan plan = predictor_.plan();
  if (const auto first = began + std::max<Clock::duration>(plan.first, spin_time_.load()); first > now) return first;
  if (began + plan.from > now) {
    *sleep_until = std::min(*sleep_until, began + plan.from);
    return now;
  }
  return began + plan.until;
}

bool StreamTransport::sleep_until(Clock::time_point then) {
  const auto left = std::max<Clock::duration>(then - Clock::now(), Clock::duration::zero());
  const timespec wait = {std::chrono::duration_cast<std::chrono::seconds>(left).count(),
                         std::chrono::duration_cast<std::chrono::nanoseconds>(left).count() % 1'000'000'000};
  pollfd polled[] = {{stream_->input(), POLLIN, 0}, {wake_, POLLIN, 0}};
  if (ppoll(polled, 2, &wait, nullptr) < 0 || polled[0].revents != 0 || !(polled[1].revents & POLLIN)) return true;
  uint64_t count;
  (void)!::read(wake_, &count, sizeof(count));
  return false;
}

Status StreamTransport::spin_until(Clock::time_point deadline) {
  auto before = Clock::now();
  for (bool moved = false;;) {
    // The other end may share this core.
    sched_yield();
    const Status status = read_some();
    if (status.code() != ErrorCode::kTimeout) return status;
    const auto now = Clock::now();
    if (now - before > kCoreNeeded) {
      // Perhaps the other end needs it while other cores are idle.
      if (moved || !avoids_busy_cores_ || !move_to_another_core()) {
        predictor_.suspend_spinning();
        return status;
      }
      moved = true;
    }
    if (now >= deadline) return status;
    before = now;
  }
}

Status StreamTransport::read_some() {
  if (!receive_status_) return receive_status_;
  const size_t before = frames_.size();
  Status status = read_some_from_stream();
  for (size_t i = before; i < frames_.size(); ++i) queued_ += bytes_of(frames_[i]);
  if (!status && status.code() != ErrorCode::kTimeout) {
    receive_status_ = status;
    // The bytes are not frames, so neither end can continue. The shutdown informs the other end.
    if (status.code() != ErrorCode::kLost) {
      stream_->shut_down();
      if (memory_) memory_->close();
    }
  }
  return status;
}

Status StreamTransport::read_some_from_stream() {
  const std::span<uint8_t> rest = parser_.writable_bytes();
  const iovec pieces[] = {{rest.data(), rest.size()}, {buffer_.data(), buffer_.size()}};
  size_t n = 0;
  const Status status = stream_->read(pieces, &n, &descriptors_);
  if (status.code() == ErrorCode::kLost) return lost(status.message());
  if (!status) return status;
  if (n == 0) return lost(parser_.between_frames() ? "it was closed" : "it was closed in the middle of a frame");
  if (descriptors_.size() > kMaxDescriptors) return Status::invalid("remote: descriptors came without an announcement");
  received_.store(received_.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
  const size_t direct = std::min(n, rest.size());
  if (Status parsed = parser_.advance(direct, frames_); !parsed) return parsed;
  return parser_.parse({buffer_.data(), n - direct}, frames_);
}

Status StreamTransport::transport_message(std::span<const uint8_t> control) {
  if (memory_) return memory_->incoming(control, descriptors_, released_);
  return Status::invalid("remote: a shared memory message came through a stream without shared memory");
}

Status StreamTransport::attachment(const AttachmentHeader& header, AttachmentPtr* attachment) {
  if (!(header.flags & kInline)) {
    if (memory_) return memory_->import_attachment(header, attachment);
    return Status::invalid("remote: an attachment in shared memory came through a stream without shared memory");
  }
  if (memory_ && header.size >= kSmallAttachment) {
    return Status::invalid("remote: an attachment of " + std::to_string(header.size) +
                           " bytes came through the socket");
  }
  *attachment = header.size <= max_attachment_bytes_ ? pool_->allocate(header.size) : nullptr;
  return {};
}

}  // namespace torch_remote::remote
