#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "remote/transport/stream_transport.h"
#include "remote/transport/transport.h"

namespace torch_remote::remote {

// One end of a session that survives its connections. Frames that are lost with a connection are sent again over the
// next one. Callers of send and receive only notice the delay.
//
// Each direction counts its frames. A sent frame is kept (tensor bytes by reference) until the other end acknowledges
// it. On a new connection each end reports how many frames it has received and gets the other frames again, in the same
// order. So each frame is received exactly once. A partly received frame is sent again from its beginning. An idle end
// sends heartbeats. A connection over which nothing arrives for three heartbeats is cut.
//
// A dedicated thread, the keeper, sends heartbeats, cuts connections and makes new ones.
class ResumingTransport : public Transport {
 public:
  struct Connection {
    std::unique_ptr<StreamTransport> transport;
    uint64_t received = 0;  // frames of this session that the other end has received
  };
  // Makes the next connection of an end. The keeper calls it. With Options::reconnect_always it is also called while
  // the old connection seems to work, because the other end may notice earlier that this connection is broken. `broken`
  // says whether this end considers it broken. Reconnect should wait for about `step` at most. kTimeout: there is no
  // connection yet. kLost: the attempt failed and may be repeated. Any other error ends the session with that message.
  // Before Reconnect sends the other end the number of received frames, it must call `freeze`, which ends the old
  // connection and returns that number.
  using Freeze = std::function<uint64_t()>;
  using Reconnect =
      std::function<Status(bool broken, std::chrono::milliseconds step, const Freeze& freeze, Connection* connection)>;

  struct Options {
    std::chrono::milliseconds lease{60'000};  // the session ends after this time without a connection
    std::chrono::milliseconds heartbeat{5'000};
    // Limit on the bytes of kept frames; a single frame may exceed it. Beyond it, send() waits. Keep it below
    // kMaxQueued: then the peer can queue all frames that this end sends again on a new connection, and neither end has
    // to wait for the other to receive.
    size_t max_unacknowledged_bytes = size_t{32} << 20;
    bool reconnect_always = false;    // call Reconnect also while the connection works
    std::function<void()> interrupt;  // called on another thread; makes Reconnect return soon
  };
  ResumingTransport(Connection first, Options options, Reconnect reconnect);
  // Informs the other end that the session is over.
  ~ResumingTransport() override;

  AttachmentPtr allocate(size_t size) override { return pool_->allocate(size); }
  AttachmentPtr share(const void* memory, size_t size, std::shared_ptr<void> owner) override {
    return std::make_shared<ExternalAttachment>(memory, size, std::move(owner));
  }
  Status send(wire::Header header, std::span<const uint8_t> control, AttachmentPtr attachment) override;
  Status receive(Frame* frame, std::chrono::nanoseconds timeout) override;
  void set_spin_time(std::chrono::nanoseconds time) override;
  void avoid_busy_cores() override;
  void wake() override;
  void abandon() override;
  bool shares_memory() const override { return false; }
  bool is_peer(int process) const override;
  std::string description() const override { return description_; }

  // The number of connections after the first one so far.
  uint64_t resumed() const { return resumed_.load(std::memory_order_relaxed); }

 private:
  using Clock = std::chrono::steady_clock;
  using ConnectionPtr = std::shared_ptr<StreamTransport>;
  struct SentFrame {
    wire::Header header;
    std::vector<uint8_t> control;
    AttachmentPtr attachment;
    size_t bytes = 0;
  };
  using Lock = std::unique_lock<std::mutex>;

  // The following require mutex_ and may release it temporarily.
  bool fits(size_t bytes) const {
    return unacknowledged_.empty() || unacknowledged_bytes_ + bytes <= options_.max_unacknowledged_bytes;
  }
  // Receives one frame from the connection into *frame, or into the queue if `frame` is null.
  Status take(Lock& lock, std::chrono::nanoseconds timeout, Frame* frame);
  // Counts a received frame. Returns true if it is for the user.
  bool count(const Frame& frame);
  void drop_acknowledged(uint64_t through);
  void acknowledge(Lock& lock, bool now);
  // A send failed. We cut the connection, but receive what has already arrived before it counts as broken.
  void cut_connection(const ConnectionPtr& connection);
  void set_broken(const ConnectionPtr& connection, const Status& why);
  void set_lost(const Status& why);
  void wait_for(Lock& lock, std::chrono::nanoseconds time);

  void run_keeper();
  void maintain_connection(Lock& lock);
  void try_to_reconnect(Lock& lock);
  void install(Lock& lock, Connection made);

  const Options options_;
  const Reconnect reconnect_;
  const std::string description_;
  const std::shared_ptr<HeapPool> pool_ = std::make_shared<HeapPool>();

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // The keeper's own condition. The state for which other threads wait changes with each message and would wake the
  // keeper every time.
  std::condition_variable keeper_changed_;
  ConnectionPtr connection_;  // null: broken
  bool suspected_ = false;    // this end has cut the connection
  Status lost_;
  Status broken_why_;
  Clock::time_point broken_since_;
  bool ending_ = false;
  std::chrono::nanoseconds spin_time_{0};
  bool avoids_busy_cores_ = false;

  // State of sending.
  bool sending_ = false;  // a thread is sending
  std::deque<std::shared_ptr<const SentFrame>> unacknowledged_;
  size_t unacknowledged_bytes_ = 0;
  uint64_t acknowledged_ = 0;  // frames that the other end has received; unacknowledged_ has the later ones
  // State of receiving.
  bool receiving_ = false;
  bool woken_ = false;
  std::deque<Frame> queue_;            // frames received during a send
  size_t queued_ = 0;                  // bytes of queue_
  uint64_t received_ = 0;              // number of frames received
  uint64_t acknowledged_to_peer_ = 0;  // number of received frames that we acknowledged
  size_t unacknowledged_received_bytes_ = 0;
  // State of the keeper.
  uint64_t progress_ = 0, sent_ = 0;           // bytes that the connection has received and sent
  Clock::time_point progressed_, sent_since_;  // when these last changed, or a heartbeat was sent
  std::atomic<uint64_t> resumed_{0};
  std::thread keeper_;
};

}  // namespace torch_remote::remote
