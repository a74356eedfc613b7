#include "remote/transport/unix_transport.h"

#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <utility>

#include "remote/transport/frame_parser.h"
#include "remote/transport/heap_attachment.h"
#include "remote/transport/pace.h"
#include "remote/transport/shared_memory.h"
#include "remote/transport/transport.h"

namespace torch_remote::remote {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kReceiveBuffer = 64 << 10;
constexpr size_t kMaxDescriptors = 16;  // that came and were not announced yet; our own ends send one at a time
// How long a sender leaves receiving to another thread before it looks again.
constexpr std::chrono::milliseconds kOtherReceives{2};
// A core that is given away and comes back so late was needed by somebody.
constexpr std::chrono::microseconds kCoreNeeded{200};

// What a frame takes in the queue.
size_t bytes_of(const Frame& frame) {
  size_t bytes = sizeof(Frame) + frame.control.size();
  if (frame.attachment) {
    const size_t attached = frame.attachment->bytes().size();
    bytes += sizeof(HeapAttachment) + (attached < kSmallAttachment ? attached : 0);  // others lie in shared memory
  }
  return bytes;
}

Status timed_out() { return {ErrorCode::kTimeout, "remote: timeout"}; }

// Has this thread go on on another core than it is on. False if it may use no other.
bool move_to_another_core() {
  cpu_set_t allowed, others;
  const int here = sched_getcpu();
  if (here < 0 || sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return false;
  others = allowed;
  CPU_CLR(static_cast<size_t>(here), &others);
  if (CPU_COUNT(&others) == 0 || sched_setaffinity(0, sizeof(others), &others) != 0) return false;
  return sched_setaffinity(0, sizeof(allowed), &allowed) == 0;
}

// Bytes in several places, sent one after the other.
class Pieces {
 public:
  void add(const void* data, size_t size) {
    if (size == 0) return;
    pieces_[count_++] = {const_cast<void*>(data), size};
  }
  bool empty() const { return first_ == count_; }
  iovec* begin() { return pieces_.data() + first_; }
  size_t count() const { return count_ - first_; }
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

// Sending and receiving have a mutex each. A thread that holds one only ever tries the other, so they cannot lock up.
class UnixTransport : public Transport, private FrameParser::Handler {
 public:
  UnixTransport(int socket, Lending lending)
      : socket_(socket),
        wake_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
        memory_(std::make_shared<SharedMemory>(lending)) {}

  ~UnixTransport() override {
    memory_->close();
    for (int descriptor : descriptors_) ::close(descriptor);
    ::close(wake_);
    ::close(socket_);
  }

  AttachmentPtr allocate(size_t size) override {
    if (size >= kSmallAttachment) return memory_->allocate(size);
    HeapMemory memory = allocate_heap(size);
    return memory ? std::make_shared<HeapAttachment>(std::move(memory), size) : nullptr;
  }

  AttachmentPtr share(const void* memory, size_t size, std::shared_ptr<void> keep) override {
    return memory_->share(memory, size, std::move(keep));
  }

  Status send(wire::Header header, std::span<const uint8_t> control, AttachmentPtr attachment) override;
  Status receive(Frame* frame, std::chrono::nanoseconds timeout) override;

  void busy_wait(std::chrono::nanoseconds time) override { busy_wait_ = time; }
  void leave_busy_cores() override { leaves_busy_cores_ = true; }

  void wake() override {
    const uint64_t one = 1;
    (void)!::write(wake_, &one, sizeof(one));
  }

  void abandon() override {
    ::close(wake_);
    ::close(socket_);
  }

  int peer_process() const override {
    ucred peer{};
    socklen_t size = sizeof(peer);
    // A socket pair's other end is known by its maker, which may be this process.
    const bool known = getsockopt(socket_, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.pid != getpid();
    return known && peer.pid > 0 ? peer.pid : 0;
  }

  std::string description() const override {
    const int peer = peer_process();
    return peer != 0 ? "unix (shared memory), pid " + std::to_string(peer) : "unix (shared memory)";
  }

 private:
  // FrameParser::Handler, with receiving_ held.
  Status attachment(const AttachmentHeader& header, AttachmentPtr* attachment) override;
  Status transport_message(std::span<const uint8_t> control) override {
    return memory_->incoming(control, descriptors_, released_);
  }

  // With receiving_ held: looks for something until `deadline`. kTimeout if nothing came.
  Status read_busily(Clock::time_point deadline);
  // What the wait that began at `began` does next: looks until the time that is returned, or, if that is past, sleeps
  // until *sleep_until.
  Clock::time_point look_until(Clock::time_point began, Clock::time_point now, Clock::time_point* sleep_until) const;
  // Sleeps until something comes, or wake(), or then. False if it was woken.
  bool sleep_until(Clock::time_point then);
  // With receiving_ held: takes what is there. kTimeout if there is nothing; errors stick.
  Status read_some();
  Status read_some_from_socket();
  void keep_descriptors(msghdr& message);
  // With sending_ held.
  Status lend(AttachmentPtr& attachment, AttachmentHeader* header);
  Status write_some(Pieces& pieces, int& descriptor);  // kTimeout if the peer does not take more now
  Status wait_to_write();
  // Tells the peer what we gave back although no frame of ours goes out. Never waits.
  void flush_memory_messages();
  Status lost(const char* what);

  const int socket_;
  const int wake_;
  const std::shared_ptr<SharedMemory> memory_;

  std::mutex sending_;
  std::vector<uint8_t> memory_frames_;
  Status send_status_;

  std::atomic<std::chrono::nanoseconds> busy_wait_{std::chrono::nanoseconds::zero()};
  std::atomic<bool> leaves_busy_cores_ = false;
  std::mutex receiving_;
  Pace pace_;
  std::atomic<bool> looks_{false};  // whether the next wait looks before it sleeps
  FrameParser parser_{*this};
  std::vector<uint8_t> buffer_ = std::vector<uint8_t>(kReceiveBuffer);
  std::deque<Frame> frames_;
  size_t queued_ = 0;            // bytes of these
  std::deque<int> descriptors_;  // came, not yet announced
  std::vector<std::shared_ptr<void>> released_;
  Status receive_status_;
};

Status UnixTransport::lost(const char* what) {
  memory_->close();
  return {ErrorCode::kLost, std::string("remote: the connection to the other end is gone: ") + what};
}

// --- sending ---------------------------------------------------------------------------------------------------------

Status UnixTransport::send(wire::Header header, std::span<const uint8_t> control, AttachmentPtr attachment) {
  if (control.size() > wire::kMaxControl) {
    return Status::invalid("remote: a control message of " + std::to_string(control.size()) + " bytes; the most is " +
                           std::to_string(wire::kMaxControl));
  }
  header.length = static_cast<uint32_t>(control.size());
  header.checksum = wire::crc32c(control.data(), control.size());
  header.flags = static_cast<uint16_t>((header.flags & ~(wire::kAttachment | wire::kLooks)) |
                                       (attachment ? wire::kAttachment : 0));
  const bool looks = looks_.load(std::memory_order_relaxed) || busy_wait_.load(std::memory_order_relaxed).count() > 0;
  if ((header.flags & wire::kWantsReply) && looks) header.flags |= wire::kLooks;

  std::lock_guard lock(sending_);
  if (!send_status_) return send_status_;
  AttachmentHeader attachment_header;
  std::span<const std::byte> inline_bytes;
  if (attachment && attachment->bytes().size() >= kSmallAttachment) {
    if (Status status = lend(attachment, &attachment_header); !status) return status;
  } else if (attachment) {
    inline_bytes = attachment->bytes();
    attachment_header.size = inline_bytes.size();
    attachment_header.flags = kInline;
  }
  memory_frames_.clear();
  int descriptor = -1;
  memory_->outgoing(SIZE_MAX, memory_frames_, &descriptor);
  Pieces pieces;
  pieces.add(memory_frames_.data(), memory_frames_.size());
  pieces.add(&header, sizeof(header));
  pieces.add(control.data(), control.size());
  if (attachment) {
    pieces.add(&attachment_header, sizeof(attachment_header));
    pieces.add(inline_bytes.data(), inline_bytes.size());
  }
  while (!pieces.empty() && send_status_.ok()) {
    send_status_ = write_some(pieces, descriptor);
    if (send_status_.code() == ErrorCode::kTimeout) send_status_ = wait_to_write();
  }
  if (descriptor >= 0) ::close(descriptor);
  return send_status_;
}

Status UnixTransport::lend(AttachmentPtr& attachment, AttachmentHeader* header) {
  if (memory_->lend(attachment, header)) return {};
  // Memory that only this process has: another connection's.
  AttachmentPtr copy = memory_->allocate(attachment->bytes().size());
  if (!copy)
    return {ErrorCode::kOutOfMemory,
            "remote: no shared memory for " + std::to_string(attachment->bytes().size()) + " bytes"};
  std::ranges::copy(attachment->bytes(), copy->bytes().begin());
  attachment = std::move(copy);
  return memory_->lend(attachment, header) ? Status() : lost("it was closed");
}

Status UnixTransport::write_some(Pieces& pieces, int& descriptor) {
  msghdr message{};
  message.msg_iov = pieces.begin();
  message.msg_iovlen = pieces.count();
  alignas(cmsghdr) char ancillary[CMSG_SPACE(sizeof(int))];
  if (descriptor >= 0) {  // goes with the first byte, so it is there when its announcement is read
    message.msg_control = ancillary;
    message.msg_controllen = sizeof(ancillary);
    cmsghdr* part = CMSG_FIRSTHDR(&message);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(part), &descriptor, sizeof(int));
  }
  ssize_t sent;
  do {
    sent = sendmsg(socket_, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (sent < 0 && errno == EINTR);
  if (sent >= 0) {
    pieces.sent(static_cast<size_t>(sent));
    if (descriptor >= 0) ::close(std::exchange(descriptor, -1));
    return {};
  }
  switch (errno) {
    case ETOOMANYREFS:  // too many descriptors in flight, which poll does not see
      poll(nullptr, 0, 1);
      return timed_out();
    case EAGAIN:
      return timed_out();
    default:
      return lost(std::strerror(errno));
  }
}

// The peer may be blocked because it sends too: what it sends is received meanwhile, as far as there is room for it.
Status UnixTransport::wait_to_write() {
  std::unique_lock receiving(receiving_, std::try_to_lock);
  if (receiving.owns_lock() && !receive_status_) receiving.unlock();  // nothing more can come
  const bool pump = receiving.owns_lock() && queued_ < kMaxQueued;
  if (receiving.owns_lock() && !pump) receiving.unlock();  // another thread may make room
  pollfd wait{socket_, static_cast<short>(pump ? POLLOUT | POLLIN : POLLOUT), 0};
  const int ready = poll(&wait, 1, pump ? -1 : static_cast<int>(kOtherReceives.count()));
  if (ready <= 0 || !pump || !(wait.revents & POLLIN)) return {};
  std::vector<std::shared_ptr<void>> released;
  const Status status = read_some();
  released.swap(released_);
  receiving.unlock();
  if (!status && status.code() != ErrorCode::kTimeout && status.code() != ErrorCode::kLost) return status;
  return {};  // if the peer is gone, sendmsg says so
}

void UnixTransport::flush_memory_messages() {
  std::unique_lock lock(sending_, std::try_to_lock);
  if (!lock.owns_lock() || !send_status_) return;  // whoever sends takes them along
  if (!memory_->has_outgoing()) return;
  // A socket that poll calls writable has three quarters of its buffer (200 KB) free: so few bytes go out whole.
  pollfd writable{socket_, POLLOUT, 0};
  if (poll(&writable, 1, 0) <= 0 || !(writable.revents & POLLOUT)) return;
  memory_frames_.clear();
  int descriptor = -1;
  memory_->outgoing(kMaxTokens, memory_frames_, &descriptor);
  Pieces pieces;
  pieces.add(memory_frames_.data(), memory_frames_.size());
  const Status status = write_some(pieces, descriptor);
  if (!pieces.empty())
    send_status_ = lost(status.ok() ? "it took a part of a small message only" : status.message().c_str());
}

// --- receiving -------------------------------------------------------------------------------------------------------

Status UnixTransport::receive(Frame* frame, std::chrono::nanoseconds timeout) {
  *frame = Frame();                             // lets an attachment go before anything is locked
  std::vector<std::shared_ptr<void>> released;  // destroyed after the lock is let go
  std::unique_lock lock(receiving_);
  Clock::time_point began, deadline;
  bool waits = false;               // since `began`
  for (Clock::time_point look;;) {  // until then, without sleeping
    const Status status = !frames_.empty() ? Status() : look != Clock::time_point() ? read_busily(look) : read_some();
    if (!released_.empty()) {
      released.swap(released_);
      lock.unlock();
      released.clear();
      lock.lock();
    }
    if (!frames_.empty()) {
      if (waits) {
        pace_.came(Clock::now() - began);
        looks_.store(pace_.plan().first.count() > 0, std::memory_order_relaxed);
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
    look = std::min(look_until(began, now, &then), deadline);
    if (look > now) continue;
    look = {};
    if (!sleep_until(then)) return timed_out();
  }
}

Clock::time_point UnixTransport::look_until(Clock::time_point began, Clock::time_point now,
                                            Clock::time_point* sleep_until) const {
  const Pace::Plan plan = pace_.plan();
  if (const auto first = began + std::max<Clock::duration>(plan.first, busy_wait_.load()); first > now) return first;
  if (began + plan.from > now) {
    *sleep_until = std::min(*sleep_until, began + plan.from);
    return now;
  }
  return began + plan.until;
}

bool UnixTransport::sleep_until(Clock::time_point then) {
  const auto left = std::max<Clock::duration>(then - Clock::now(), Clock::duration::zero());
  const timespec wait = {std::chrono::duration_cast<std::chrono::seconds>(left).count(),
                         std::chrono::duration_cast<std::chrono::nanoseconds>(left).count() % 1'000'000'000};
  pollfd polled[] = {{socket_, POLLIN, 0}, {wake_, POLLIN, 0}};
  if (ppoll(polled, 2, &wait, nullptr) < 0 || polled[0].revents != 0 || !(polled[1].revents & POLLIN)) return true;
  uint64_t count;
  (void)!::read(wake_, &count, sizeof(count));
  return false;
}

Status UnixTransport::read_busily(Clock::time_point deadline) {
  auto before = Clock::now();
  for (bool moved = false;;) {
    // The other end may share this core.
    sched_yield();
    const Status status = read_some();
    if (status.code() != ErrorCode::kTimeout) return status;
    const auto now = Clock::now();
    if (now - before > kCoreNeeded) {
      // Maybe by the other end, while the other cores are free.
      if (moved || !leaves_busy_cores_ || !move_to_another_core()) {
        pace_.contended();
        return status;
      }
      moved = true;
    }
    if (now >= deadline) return status;
    before = now;
  }
}

Status UnixTransport::read_some() {
  if (!receive_status_) return receive_status_;
  const size_t before = frames_.size();
  Status status = read_some_from_socket();
  for (size_t i = before; i < frames_.size(); ++i) queued_ += bytes_of(frames_[i]);
  if (!status && status.code() != ErrorCode::kTimeout) {
    receive_status_ = status;
    // Bytes that are no frames: neither end can go on, and the other one must learn of it.
    if (status.code() != ErrorCode::kLost) {
      shutdown(socket_, SHUT_RDWR);
      memory_->close();
    }
  }
  return status;
}

Status UnixTransport::read_some_from_socket() {
  const std::span<uint8_t> rest = parser_.rest();
  iovec pieces[] = {{rest.data(), rest.size()}, {buffer_.data(), buffer_.size()}};
  alignas(cmsghdr) char ancillary[CMSG_SPACE(kMaxDescriptors * sizeof(int))];
  msghdr message{};
  message.msg_iov = pieces;
  message.msg_iovlen = 2;
  message.msg_control = ancillary;
  message.msg_controllen = sizeof(ancillary);
  ssize_t n;
  do {
    n = recvmsg(socket_, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  } while (n < 0 && errno == EINTR);
  if (n < 0) return errno == EAGAIN || errno == EWOULDBLOCK ? timed_out() : lost(std::strerror(errno));
  if (n == 0) return lost(parser_.between_frames() ? "it was closed" : "it was closed in the middle of a frame");
  keep_descriptors(message);
  if (descriptors_.size() > kMaxDescriptors) return Status::invalid("remote: descriptors came without an announcement");
  if (message.msg_flags & MSG_CTRUNC)
    return Status::invalid("remote: more descriptors came than this process may have open; raise `ulimit -n`");
  const size_t direct = std::min(static_cast<size_t>(n), rest.size());
  if (Status status = parser_.advance(direct, frames_); !status) return status;
  return parser_.parse({buffer_.data(), static_cast<size_t>(n) - direct}, frames_);
}

void UnixTransport::keep_descriptors(msghdr& message) {
  for (cmsghdr* part = CMSG_FIRSTHDR(&message); part; part = CMSG_NXTHDR(&message, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int descriptor;
      std::memcpy(&descriptor, CMSG_DATA(part) + i * sizeof(int), sizeof(int));
      descriptors_.push_back(descriptor);
    }
  }
}

Status UnixTransport::attachment(const AttachmentHeader& header, AttachmentPtr* attachment) {
  if (!(header.flags & kInline)) return memory_->borrow(header, attachment);
  HeapMemory memory = header.size < kSmallAttachment ? allocate_heap(header.size) : nullptr;
  if (!memory) {
    return Status::invalid("remote: an attachment of " + std::to_string(header.size) +
                           " bytes came through the socket");
  }
  *attachment = std::make_shared<HeapAttachment>(std::move(memory), header.size);
  return {};
}

}  // namespace

std::unique_ptr<Transport> make_unix_transport(int socket) { return make_unix_transport(socket, Lending::kWritable); }

std::unique_ptr<Transport> make_unix_transport(int socket, Lending lending) {
  return std::make_unique<UnixTransport>(socket, lending);
}

}  // namespace torch_remote::remote
