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
#include "remote/transport/shared_memory.h"
#include "remote/transport/transport.h"
#include "remote/transport/wait_predictor.h"

namespace torch_remote::remote {

// Sends frames over a stream of bytes. Tensor bytes go through the stream as well, unless there is shared memory.
//
// Sending and receiving have one mutex each. A thread that holds one of them only tries to lock the other, so there is
// no deadlock.
class StreamTransport : public Transport, private FrameParser::Handler {
 public:
  struct Options {
    std::shared_ptr<SharedMemory> memory;  // shared with the peer; null if there is none
    // Most bytes of an attachment that comes through the stream. A larger one is skipped: see Frame::refused_bytes.
    uint64_t max_attachment_bytes = UINT64_MAX;
  };
  StreamTransport(std::unique_ptr<ByteStream> stream, Options options);
  ~StreamTransport() override;

  AttachmentPtr allocate(size_t size) override;
  AttachmentPtr share(const void* memory, size_t size, std::shared_ptr<void> owner) override;
  Status send(wire::Header header, std::span<const uint8_t> control, AttachmentPtr attachment) override;
  Status receive(Frame* frame, std::chrono::nanoseconds timeout) override;
  void set_spin_time(std::chrono::nanoseconds time) override { spin_time_ = time; }
  void avoid_busy_cores() override { avoids_busy_cores_ = true; }
  void wake() override;
  void abandon() override;
  bool shares_memory() const override { return memory_ != nullptr; }
  int peer_process() const override { return stream_->peer_process(); }
  bool is_peer(int process) const override { return stream_->is_peer(process); }
  std::string description() const override { return stream_->description(); }

  // Sends a small frame without attachment if it can go out whole without waiting; *sent says whether it did.
  Status send_at_once(wire::Header header, std::span<const uint8_t> control, bool* sent);
  // From now on a send fails with kLost if no byte moves in either direction for this long.
  void set_silence_limit(std::chrono::nanoseconds time) { silence_limit_ = time; }
  // Ends the connection for both ends, whose waits fail with kLost. Any thread may call this.
  void disconnect() { stream_->shut_down(); }
  // Total bytes received and sent. Any thread may call these.
  uint64_t bytes_received() const { return received_.load(std::memory_order_relaxed); }
  uint64_t bytes_sent() const { return sent_.load(std::memory_order_relaxed); }

 private:
  class Pieces;
  using Clock = std::chrono::steady_clock;

  // FrameParser::Handler; requires receiving_.
  Status attachment(const AttachmentHeader& header, AttachmentPtr* attachment) override;
  Status transport_message(std::span<const uint8_t> control) override;

  // Requires receiving_. Polls for input until `deadline`. Returns kTimeout if none came.
  Status spin_until(Clock::time_point deadline);
  // The next step of the wait that began at `began`. The caller spins until the returned time. If that time is past,
  // the caller sleeps until *sleep_until.
  Clock::time_point spin_until_time(Clock::time_point began, Clock::time_point now,
                                    Clock::time_point* sleep_until) const;
  // Sleeps until input arrives, wake() is called, or `then`. Returns false if wake() ended the sleep.
  bool sleep_until(Clock::time_point then);
  // Requires receiving_. Reads what is available; kTimeout if nothing is. Other errors are permanent.
  Status read_some();
  Status read_some_from_stream();
  // Bytes that a frame occupies in the queue.
  size_t bytes_of(const Frame& frame) const;
  // The following require sending_.
  Status export_attachment(AttachmentPtr& attachment, AttachmentHeader* header);
  Status write_some(Pieces& pieces, int& descriptor);  // kTimeout if the peer accepts no more now
  Status wait_to_write();
  bool writable() const;
  // Sends the messages of memory_ (SharedMemory::outgoing), unless another thread is sending: its frame then takes them
  // along. Never waits.
  void flush_memory_messages();
  Status lost(const std::string& what);

  const std::unique_ptr<ByteStream> stream_;
  const int wake_;
  const std::shared_ptr<SharedMemory> memory_;
  const std::shared_ptr<HeapPool> pool_ = std::make_shared<HeapPool>();
  const uint64_t max_attachment_bytes_;

  std::mutex sending_;
  std::vector<uint8_t> memory_frames_;
  Status send_status_;
  std::atomic<uint64_t> sent_{0};  // bytes; written with sending_ held
  std::atomic<std::chrono::nanoseconds> silence_limit_{std::chrono::nanoseconds::zero()};  // zero: no limit
  // bytes received and sent when the silence limit was last checked; moved_at_: when that number last changed
  uint64_t moved_ = 0;
  Clock::time_point moved_at_;

  std::atomic<std::chrono::nanoseconds> spin_time_{std::chrono::nanoseconds::zero()};
  std::atomic<bool> avoids_busy_cores_ = false;
  std::mutex receiving_;
  WaitPredictor predictor_;
  std::atomic<bool> spins_{false};  // whether the next wait spins before it sleeps
  FrameParser parser_{*this};
  std::vector<uint8_t> buffer_;
  std::deque<Frame> frames_;
  size_t queued_ = 0;            // bytes of frames_
  std::deque<int> descriptors_;  // received, not announced yet
  std::vector<std::shared_ptr<void>> released_;
  Status receive_status_;
  std::atomic<uint64_t> received_{0};  // bytes; written with receiving_ held
};

}  // namespace torch_remote::remote
