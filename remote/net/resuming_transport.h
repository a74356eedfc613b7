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

// One end of a session that outlives its connections: what is lost with one is sent again over the next, and whoever
// sends and receives here sees nothing of it but the time it takes.
//
// Each direction counts its frames. What was sent is kept until the other end says that it has it (tensor bytes by
// reference); when connections change, each end says how many it has, and gets the rest, the same frames in the same
// order. So each is received exactly once. An end that has nothing to say says that (a heartbeat); a connection over
// which nothing moved for three of these is cut. Partly received frames are sent again from their beginning.
//
// A thread of its own (the keeper) does what nobody waits for: heartbeats, cuts, new connections.
class ResumingTransport : public Transport {
 public:
  struct Connection {
    std::unique_ptr<StreamTransport> transport;
    uint64_t received = 0;  // frames of this session that the other end has
  };
  // How an end gets its next connection. Called by the keeper, also while the old one seems good (a worker's client may
  // know earlier that it is not): `broken` says whether it is. Waits for about `step` at most. kTimeout: not yet.
  // kLost: it may be tried again, with why it failed. Anything else ends the session, with that message. Before it says
  // how many frames this end has, it calls `freeze`, which ends the old connection and returns that number.
  using Freeze = std::function<uint64_t()>;
  using Reconnect =
      std::function<Status(bool broken, std::chrono::milliseconds step, const Freeze& freeze, Connection* connection)>;

  struct Options {
    std::chrono::milliseconds lease{60'000};  // a session ends when it has no connection for so long
    std::chrono::milliseconds heartbeat{5'000};
    // The most bytes of frames that are kept, or one frame of any size. Sending waits beyond that. The end that may
    // keep less than kMaxQueued can always take what the other one sends again.
    size_t most_kept = size_t{32} << 20;
    bool reconnect_always = false;    // whether Reconnect is to be called while the connection is good, too
    std::function<void()> interrupt;  // from another thread: has Reconnect return soon
  };
  ResumingTransport(Connection first, Options options, Reconnect reconnect);
  // Tells the other end that the session is over.
  ~ResumingTransport() override;

  AttachmentPtr allocate(size_t size) override { return pool_->allocate(size); }
  AttachmentPtr share(const void* memory, size_t size, std::shared_ptr<void> keep) override {
    return std::make_shared<KeptAttachment>(memory, size, std::move(keep));
  }
  Status send(wire::Header header, std::span<const uint8_t> control, AttachmentPtr attachment) override;
  Status receive(Frame* frame, std::chrono::nanoseconds timeout) override;
  void busy_wait(std::chrono::nanoseconds time) override;
  void leave_busy_cores() override;
  void wake() override;
  void abandon() override;
  bool shares_memory() const override { return false; }
  bool is_peer(int process) const override;
  std::string description() const override { return description_; }

  // Connections after the first one so far.
  uint64_t resumed() const { return resumed_.load(std::memory_order_relaxed); }

 private:
  using Clock = std::chrono::steady_clock;
  using ConnectionPtr = std::shared_ptr<StreamTransport>;
  struct Kept {
    wire::Header header;
    std::vector<uint8_t> control;
    AttachmentPtr attachment;
    size_t bytes = 0;
  };
  using Lock = std::unique_lock<std::mutex>;

  // With mutex_ held, which they may let go meanwhile:
  bool has_room(size_t bytes) const { return kept_.empty() || kept_bytes_ + bytes <= options_.most_kept; }
  // Takes one frame from the connection: into *frame, or for later if that is null.
  Status take(Lock& lock, std::chrono::nanoseconds timeout, Frame* frame);
  // A frame came. True if it is for the user.
  bool count(const Frame& frame);
  void drop_acknowledged(uint64_t through);
  void acknowledge(Lock& lock, bool now);
  // Sending failed: what has come already is taken before the connection counts as broken.
  void suspect(const ConnectionPtr& connection);
  void set_broken(const ConnectionPtr& connection, const Status& why);
  void set_lost(const Status& why);
  void wait_for(Lock& lock, std::chrono::nanoseconds time);

  void keep();
  void look_after(Lock& lock);
  void try_to_reconnect(Lock& lock);
  void install(Lock& lock, Connection made);

  const Options options_;
  const Reconnect reconnect_;
  const std::string description_;
  const std::shared_ptr<HeapPool> pool_ = std::make_shared<HeapPool>();

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Apart: what others wait for changes with each message, and would wake the keeper each time.
  std::condition_variable keeper_changed_;
  ConnectionPtr connection_;  // null: broken
  bool suspected_ = false;    // it was cut by this end
  Status lost_;
  Status broken_why_;
  Clock::time_point broken_since_;
  bool ending_ = false;
  std::chrono::nanoseconds busy_wait_{0};
  bool leaves_busy_cores_ = false;

  // Sending.
  bool sends_ = false;  // somebody has the turn
  std::deque<std::shared_ptr<const Kept>> kept_;
  size_t kept_bytes_ = 0;
  uint64_t acknowledged_ = 0;  // frames that the other end has; kept_ are those behind
  // Receiving.
  bool receives_ = false;
  bool woken_ = false;
  std::deque<Frame> queue_;  // taken while somebody sent
  size_t queued_ = 0;        // bytes of these
  uint64_t received_ = 0;    // frames
  uint64_t told_ = 0;        // of these the other end knows
  size_t untold_bytes_ = 0;
  // The keeper's.
  uint64_t progress_ = 0, sent_ = 0;
  Clock::time_point progressed_, sent_since_;
  std::atomic<uint64_t> resumed_{0};
  std::thread keeper_;
};

}  // namespace torch_remote::remote
