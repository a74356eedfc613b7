#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "remote/transport/byte_stream.h"
#include "remote/transport/frame_parser.h"
#include "remote/transport/heap_attachment.h"
#include "remote/transport/pace.h"
#include "remote/transport/shared_memory.h"
#include "remote/transport/transport.h"

namespace torch_remote::remote {

// Frames over a stream of bytes; tensor bytes too, unless there is shared memory.
//
// Sending and receiving have a mutex each. A thread that holds one only ever tries the other, so they cannot lock up.
class StreamTransport : public Transport, private FrameParser::Handler {
 public:
  struct Options {
    std::shared_ptr<SharedMemory> memory;  // with the peer; null: there is none
    // Of one attachment that comes through the stream. What is more is skipped: Frame::refused.
    uint64_t most_attached = UINT64_MAX;
  };
  StreamTransport(std::unique_ptr<ByteStream> stream, Options options);
  ~StreamTransport() override;

  AttachmentPtr allocate(size_t size) override;
  AttachmentPtr share(const void* memory, size_t size, std::shared_ptr<void> keep) override;
  Status send(wire::Header header, std::span<const uint8_t> control, AttachmentPtr attachment) override;
  Status receive(Frame* frame, std::chrono::nanoseconds timeout) override;
  void busy_wait(std::chrono::nanoseconds time) override { busy_wait_ = time; }
  void leave_busy_cores() override { leaves_busy_cores_ = true; }
  void wake() override;
  void abandon() override;
  bool shares_memory() const override { return memory_ != nullptr; }
  int peer_process() const override { return stream_->peer_process(); }
  bool is_peer(int process) const override { return stream_->is_peer(process); }
  std::string description() const override { return stream_->description(); }

  // A small frame without attachment, if it can go out whole without waiting: *sent.
  Status send_at_once(wire::Header header, std::span<const uint8_t> control, bool* sent);
  // From now on a send that waits while nothing comes or goes for so long ends with kLost.
  void most_silence(std::chrono::nanoseconds time) { most_silence_ = time; }
  // Ends the connection for both ends: waits end with kLost. From any thread.
  void cut() { stream_->shut_down(); }
  // Bytes that came and went so far. From any thread.
  uint64_t bytes_received() const { return received_.load(std::memory_order_relaxed); }
  uint64_t bytes_sent() const { return sent_.load(std::memory_order_relaxed); }

 private:
  class Pieces;
  using Clock = std::chrono::steady_clock;

  // FrameParser::Handler, with receiving_ held.
  Status attachment(const AttachmentHeader& header, AttachmentPtr* attachment) override;
  Status transport_message(std::span<const uint8_t> control) override;

  // With receiving_ held: looks for something until `deadline`. kTimeout if nothing came.
  Status read_busily(Clock::time_point deadline);
  // What the wait that began at `began` does next: looks until the time that is returned, or, if that is past, sleeps
  // until *sleep_until.
  Clock::time_point look_until(Clock::time_point began, Clock::time_point now, Clock::time_point* sleep_until) const;
  // Sleeps until something comes, or wake(), or then. False if it was woken.
  bool sleep_until(Clock::time_point then);
  // With receiving_ held: takes what is there. kTimeout if there is nothing; errors stick.
  Status read_some();
  Status read_some_from_stream();
  // What a frame takes in the queue.
  size_t bytes_of(const Frame& frame) const;
  // With sending_ held.
  Status lend(AttachmentPtr& attachment, AttachmentHeader* header);
  Status write_some(Pieces& pieces, int& descriptor);  // kTimeout if the peer does not take more now
  Status wait_to_write();
  bool writable() const;
  // Tells the peer what we gave back although no frame of ours goes out. Never waits.
  void flush_memory_messages();
  Status lost(const std::string& what);

  const std::unique_ptr<ByteStream> stream_;
  const int wake_;
  const std::shared_ptr<SharedMemory> memory_;
  const std::shared_ptr<HeapPool> pool_ = std::make_shared<HeapPool>();
  const uint64_t most_attached_;

  std::mutex sending_;
  std::vector<uint8_t> memory_frames_;
  Status send_status_;
  std::atomic<uint64_t> sent_{0};  // bytes; written with sending_ held
  std::atomic<std::chrono::nanoseconds> most_silence_{std::chrono::nanoseconds::zero()};  // zero: any
  uint64_t moved_ = 0;  // bytes, when it was last seen that some did: then
  Clock::time_point moved_at_;

  std::atomic<std::chrono::nanoseconds> busy_wait_{std::chrono::nanoseconds::zero()};
  std::atomic<bool> leaves_busy_cores_ = false;
  std::mutex receiving_;
  Pace pace_;
  std::atomic<bool> looks_{false};  // whether the next wait looks before it sleeps
  FrameParser parser_{*this};
  std::vector<uint8_t> buffer_;
  std::deque<Frame> frames_;
  size_t queued_ = 0;            // bytes of these
  std::deque<int> descriptors_;  // came, not yet announced
  std::vector<std::shared_ptr<void>> released_;
  Status receive_status_;
  std::atomic<uint64_t> received_{0};  // bytes; written with receiving_ held
};

}  // namespace torch_remote::remote
