#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>

#include "ir/status.h"
#include "remote/transport/transport.h"
#include "worker/device/machine.h"
#include "worker/runner/plugin.h"

namespace torch_remote::worker {

// Whether the client that sends it does nothing until it is answered.
bool is_waited_for(const remote::Frame& frame);

// A session's messages, in order. While a long run goes on it takes what has come, for later, so that a Cancel among it
// is seen at once, and knows what the client does meanwhile. One thread, but for wake().
class Inbox {
 public:
  explicit Inbox(remote::Transport& transport) : transport_(transport), client_load_(0) {}

  // From now on the client's process is looked at, if it is on this machine. `says`: which one it says it is.
  void watch_client(int says) {
    const int known = transport_.peer_process();
    client_load_ = ProcessLoad(known == 0 && transport_.is_peer(says) ? says : known);
  }

  // Likewise, what other processes of this machine use while something is to be done here: whoever does is a client
  // that computes.
  void watch_others() { others_.emplace(); }

  // The next message; none is a Cancel. kTimeout after `timeout`, or after wake().
  Status receive(remote::Frame* frame, std::chrono::nanoseconds timeout);
  // When that was called last, ns.
  uint64_t asked() const { return asked_; }
  // This message is handled from now on.
  void begin(const remote::Frame& frame);

  // From any thread: has receive() return, this time or the next one, until forget_wake().
  void wake() {
    woken_ = true;
    transport_.wake();
  }
  void forget_wake() { woken_ = false; }

  // The run of this sequence is to be dropped, as far as is known.
  bool is_cancelled(uint64_t sequence) const { return sequence <= cancelled_; }
  // Likewise, with a look at what has come.
  bool looks_cancelled(uint64_t sequence) {
    look_ahead();
    return is_cancelled(sequence);
  }

  // Likewise, or that the client is gone. For any thread.
  bool is_over(uint64_t sequence) const { return is_cancelled(sequence) || gone_; }

  // Asked in the middle of a run: what the client does now.
  tr_client client_activity();

  // Takes what has come, for later, and looks for a Cancel among it.
  void look_ahead();

 private:
  bool note_cancel(const remote::Frame& frame);
  void note_wait(const remote::Frame& frame);
  tr_client look_at_client(uint64_t now);

  remote::Transport& transport_;
  std::atomic<bool> woken_{false};
  std::deque<remote::Frame> ahead_;     // received, and not yet handled
  size_t ahead_bytes_ = 0;              // of them; what is too much waits in the socket
  Status ahead_status_;                 // why nothing more comes
  std::atomic<bool> gone_{false};       // the client
  std::atomic<uint64_t> cancelled_{0};  // runs up to this sequence are dropped
  uint64_t looked_ = 0;                 // when, ns
  uint64_t asked_ = 0;                  // when receive() was called, ns
  bool waited_for_ = false;             // the message that is being handled
  uint32_t waits_ahead_ = 0;            // such messages in ahead_
  ProcessLoad client_load_;
  std::optional<OtherLoad> others_;
  uint64_t idle_ = 0;           // how long nothing has come, and so nothing was to be done, ns
  uint64_t client_looked_ = 0;  // when it was last asked what the client does, ns; 0: since the last message
  uint64_t client_asked_ = 0;   // likewise, at any time
  uint64_t waits_since_ = 0;    // when it was first seen to wait, ns; 0: it does not
  bool client_looks_ = false;   // when it waits, at first
  // It was answered, and sent something that it does not wait for: how much it used while it waited says nothing now.
  bool client_resumed_ = false;
  tr_client client_activity_ = TR_CLIENT_RESTS;
};

}  // namespace torch_remote::worker
