#include <condition_variable>
#include <deque>
#include <mutex>

#include "remote/transport/heap_attachment.h"
#include "remote/transport/transport.h"

namespace torch_remote::remote {
namespace {

// The incoming side of one end: frames, and lent attachments that the other end gave back.
struct Mailbox {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Frame> frames;
  std::vector<std::shared_ptr<void>> returned;
  bool peer_closed = false;
  bool closed = false;
  bool woken = false;
};

// An attachment as the receiver holds it. On release the lent attachment goes to the owner's mailbox, so that the
// owner's destructors do not run on the receiver's thread.
class ReceivedAttachment : public Attachment {
 public:
  ReceivedAttachment(AttachmentPtr lent, std::shared_ptr<Mailbox> owner)
      : lent_(std::move(lent)), owner_(std::move(owner)) {}
  ~ReceivedAttachment() override {
    {
      std::lock_guard lock(owner_->mutex);
      if (!owner_->closed) owner_->returned.push_back(std::move(lent_));
    }
    owner_->changed.notify_all();
  }
  std::span<std::byte> bytes() override { return lent_->bytes(); }

 private:
  AttachmentPtr lent_;
  std::shared_ptr<Mailbox> owner_;
};

class InprocTransport : public Transport {
 public:
  InprocTransport(std::shared_ptr<Mailbox> in, std::shared_ptr<Mailbox> out)
      : in_(std::move(in)), out_(std::move(out)) {}

  ~InprocTransport() override {
    std::deque<Frame> frames;
    std::vector<std::shared_ptr<void>> returned;
    {
      std::lock_guard lock(in_->mutex);
      in_->closed = true;
      frames.swap(in_->frames);
      returned.swap(in_->returned);
    }
    {
      std::lock_guard lock(out_->mutex);
      out_->peer_closed = true;
    }
    out_->changed.notify_all();
  }

  AttachmentPtr allocate(size_t size) override {
    if (size >= kSmallAttachment) release_returned();
    return pool_->allocate(size);
  }

  AttachmentPtr share(const void* memory, size_t size, std::shared_ptr<void> owner) override {
    return std::make_shared<ExternalAttachment>(memory, size, std::move(owner));
  }

  Status send(wire::Header header, std::span<const uint8_t> control, AttachmentPtr attachment) override {
    release_returned();
    header.length = static_cast<uint32_t>(control.size());
    header.checksum = wire::crc32c(control.data(), control.size());
    header.flags = static_cast<uint16_t>((header.flags & ~wire::kAttachment) | (attachment ? wire::kAttachment : 0));
    Frame frame{header, {control.begin(), control.end()}, nullptr};
    if (attachment) frame.attachment = std::make_shared<ReceivedAttachment>(std::move(attachment), in_);
    {
      std::lock_guard lock(out_->mutex);
      if (!out_->closed) {
        out_->frames.push_back(std::move(frame));
        out_->changed.notify_all();
        return {};
      }
    }
    return lost();
  }

  Status receive(Frame* frame, std::chrono::nanoseconds timeout) override {
    *frame = Frame();  // releases an old attachment before the lock is taken
    const auto deadline =
        std::chrono::steady_clock::now() + std::min<std::chrono::nanoseconds>(timeout, std::chrono::years(1));
    std::unique_lock lock(in_->mutex);
    for (;;) {
      if (!in_->returned.empty()) {
        lock.unlock();
        release_returned();
        lock.lock();
      }
      if (!in_->frames.empty()) {
        *frame = std::move(in_->frames.front());
        in_->frames.pop_front();
        return {};
      }
      if (in_->peer_closed) return lost();
      if (in_->woken || timeout.count() <= 0 || std::chrono::steady_clock::now() >= deadline) {
        in_->woken = false;
        return {ErrorCode::kTimeout, "remote: timeout"};
      }
      in_->changed.wait_until(lock, deadline);
    }
  }

  void wake() override {
    {
      std::lock_guard lock(in_->mutex);
      in_->woken = true;
    }
    in_->changed.notify_all();
  }

  void abandon() override {}

  std::string description() const override { return "in process"; }

 private:
  static Status lost() { return {ErrorCode::kLost, "remote: the other end of the in-process connection was closed"}; }

  void release_returned() {
    std::vector<std::shared_ptr<void>> returned;
    std::lock_guard lock(in_->mutex);
    returned.swap(in_->returned);  // destroyed after the lock is released
  }

  std::shared_ptr<Mailbox> in_;
  std::shared_ptr<Mailbox> out_;
  std::shared_ptr<HeapPool> pool_ = std::make_shared<HeapPool>();
};

}  // namespace

std::pair<std::unique_ptr<Transport>, std::unique_ptr<Transport>> make_inproc_transport() {
  auto a = std::make_shared<Mailbox>(), b = std::make_shared<Mailbox>();
  return {std::make_unique<InprocTransport>(a, b), std::make_unique<InprocTransport>(b, a)};
}

}  // namespace torch_remote::remote
