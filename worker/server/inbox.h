#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <thread>

#include "ir/status.h"
#include "remote/transport/transport.h"
#include "worker/collectives/collective_runner.h"
#include "worker/device/machine.h"
#include "worker/runner/plugin.h"

namespace torch_remote::worker {

// Whether the client waits for the reply to this message before it does anything else.
bool is_waited_for(const remote::Frame& frame);

// A session's messages, in order. During a long run, receive_early() takes messages from the transport and stores them.
// So a Cancel among them takes effect at once, and client_activity() knows whether the client waits. Only the thread
// that constructs it may use it. The exceptions are wake() and is_over().
class Inbox final : public CollectiveClient {
 public:
  explicit Inbox(remote::Transport& transport) : transport_(transport), client_load_(0) {}

  // Starts observing the client's process, if it is on this machine. `claimed_process`: the process id that the client
  // claims.
  void watch_client(int claimed_process) {
    const int known = transport_.peer_process();
    client_load_ = ProcessLoad(known == 0 && transport_.is_peer(claimed_process) ? claimed_process : known);
  }

  // Starts observing how much processor time other processes of this machine use while this worker has work. If they
  // use more than half of a core, client_activity() returns TR_CLIENT_COMPUTING.
  void watch_others() { others_.emplace(); }

  // Returns the next message, which is never a Cancel. Returns kTimeout if none arrives within `timeout`, or after
  // wake(). Other errors are the transport's; kLost means that the client is gone.
  Status receive(remote::Frame* frame, std::chrono::nanoseconds timeout);
  // When receive() was called last, in ns of CLOCK_MONOTONIC.
  uint64_t asked() const { return asked_; }
  // Records that the session handles this message from now on.
  void begin(const remote::Frame& frame);
  uint64_t current_message() const override { return current_message_; }

  // Thread safe. Until forget_wake(), receive() does not wait: it returns a message that has arrived, or kTimeout. A
  // receive() that waits returns now.
  void wake() override {
    woken_ = true;
    transport_.wake();
  }
  void forget_wake() { woken_ = false; }

  // Whether the run with this sequence is cancelled, as far as is known.
  bool is_cancelled(uint64_t sequence) const { return sequence <= cancelled_; }
  // As is_cancelled(), but receives pending messages first.
  bool poll_cancelled(uint64_t sequence) {
    receive_early();
    return is_cancelled(sequence);
  }

  // Whether the run is cancelled or the client is gone. Thread safe; the inbox's own thread receives pending messages
  // first.
  bool is_over(uint64_t sequence) override {
    if (std::this_thread::get_id() == thread_) receive_early();
    return is_cancelled(sequence) || gone_;
  }

  // Returns what the client is doing now. Call it during a run.
  tr_client_activity client_activity();

  // Receives pending messages early, and looks for a Cancel among them.
  void receive_early() override;

 private:
  bool note_cancel(const remote::Frame& frame);
  void note_wait(const remote::Frame& frame);
  tr_client_activity look_at_client(uint64_t now);

  remote::Transport& transport_;
  const std::thread::id thread_ = std::this_thread::get_id();
  std::atomic<bool> woken_{false};
  std::deque<remote::Frame> early_;     // Messages that were received and not handled yet.
  size_t early_bytes_ = 0;              // Their bytes; messages beyond the limit wait in the socket.
  Status early_status_;                 // The reason why no more messages arrive.
  std::atomic<bool> gone_{false};       // The client is gone.
  std::atomic<uint64_t> cancelled_{0};  // Runs up to this sequence are dropped.
  uint64_t current_message_ = 0;
  uint64_t looked_ = 0;       // When receive_early() ran last, in ns.
  uint64_t asked_ = 0;        // When receive() was called last, in ns.
  bool waited_for_ = false;   // The client waits for the reply to the message that is being handled.
  uint32_t early_waits_ = 0;  // Number of messages in early_ for whose reply the client waits.
  ProcessLoad client_load_;
  std::optional<OtherProcessLoad> others_;
  uint64_t idle_ = 0;           // Total time that receive() has waited, so that there was no work, in ns.
  uint64_t client_looked_ = 0;  // When client_activity_ was computed, in ns; 0: not since begin().
  uint64_t client_asked_ = 0;   // When look_at_client() ran last, in ns.
  uint64_t waits_since_ = 0;    // When the client was first seen waiting, in ns; 0: it does not wait.
  bool client_polls_ = false;   // Whether the client polls when it begins to wait.
  // Set when the client has received a reply and then sent a message without waiting. Its processor time was last
  // measured while it waited. So the next look_at_client() assumes that it computes.
  bool client_resumed_ = false;
  tr_client_activity client_activity_ = TR_CLIENT_IDLE;
};

}  // namespace torch_remote::worker
