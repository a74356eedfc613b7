#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <optional>

#include "remote/client/program_cache.h"
#include "remote/client/types.h"
#include "remote/client/worker_memory.h"
#include "remote/client/worker_profile.h"
#include "remote/transport/transport.h"
#include "remote/wire/wire_generated.h"

// Handles messages from the worker: replies, which are matched by sequence; acknowledgements, which return credits (the
// right to have messages in flight); failures.
//
// No thread is dedicated to receiving. One waiting thread at a time, the leader, receives. The others wait for the
// leader. When the leader has its own reply, one of the others becomes the leader.
namespace torch_remote::remote {

// Thread safe.
class Replies {
 public:
  Replies(Transport& transport, const ProgramCache& programs) : transport_(transport), programs_(programs) {}

  // Waits until `messages` more messages with `bytes` bytes of uploads may be in flight. An upload of more bytes than
  // the limit may be in flight alone. Returns kLost if the worker is lost; nothing else ends the wait.
  Status reserve(size_t messages, size_t bytes);
  // Waits until a quarter of the limit on messages in flight is free, so that reserve() hardly ever waits. Unlike
  // reserve(), this calls `keep_waiting`, which takes locks of the caller (the GIL): call it with none held.
  Status throttle(const KeepWaiting& keep_waiting);
  // Says that this message, the next one in order, is about to be sent.
  void sending(uint64_t sequence, size_t bytes);
  // Says that the worker has answered the client hello, whose reply this object does not receive.
  void hello_answered(uint64_t sequence);
  // Says that a thread will wait for this message's reply.
  void expect(uint64_t sequence);
  // Whether a reply that a thread waits for, or will wait for, has not arrived.
  bool expects_reply() const;
  // Says that no thread will wait for this message's reply any more.
  void drop_reply(uint64_t sequence);
  // Handles the messages that have already arrived.
  void drain();
  // Whether wait() would return at once: the reply is there, or the worker is lost.
  bool has(uint64_t sequence) const;

  // Waits for the reply to a message that was passed to expect(). A failure in the reply is returned and stored in
  // *error. After an interruption the reply is no longer expected, unless `keep_expecting` is set: then the wait can be
  // repeated.
  Status wait(uint64_t sequence, const KeepWaiting& keep_waiting, Frame* reply, OpError* error,
              bool keep_expecting = false);

  // Deferred failures are those of programs that could not be built, and those in replies whose wait was interrupted.
  // If there are any, the first one replaces *error, the result of a synchronize. The other deferred failures and the
  // previous *error follow in more_errors, in this order.
  void take_deferred(OpError* error);

  // Says that profile parts from this message on are to be stored, at most `limit` events.
  void start_profile(uint64_t limit, uint64_t sequence);
  // Returns the profile parts that came since start_profile.
  WorkerProfile take_profile();

  // Records `error` for a run (`sequence`) that cannot be sent. If its reply is expected, wait() returns the error;
  // otherwise take_deferred() reports it. failure_of() returns it for the buffers that the run should have created.
  // Their ids are [first_result_id, first_result_id + count).
  void fail(uint64_t sequence, uint64_t first_result_id, uint64_t count, OpError error);
  // The error that fail() recorded for this buffer, if any.
  std::optional<OpError> failure_of(uint64_t buffer) const;

  // Says that the connection failed during a send. Messages that arrived before are handled first. The first reason for
  // the loss stays in health().
  void set_connection_lost(const Status& why);
  // Says that this end gives the connection up. All waits end, as after a loss.
  void end_waits(const Status& why);
  // Returns ok, or kLost with the reason.
  Status health() const;
  // Sequence of the last message that the worker has acknowledged.
  uint64_t acknowledged() const;
  // Whether ops of acknowledged messages still run in the background of the worker.
  bool has_background_work() const;
  uint64_t last_sent() const;

  struct Totals {
    uint64_t bytes_received = 0;  // headers and control bytes
    uint64_t kernels_compiled = 0;
    uint64_t groups_without_kernel = 0;
    uint64_t differences = 0;  // of shadow runs
    uint64_t back_pressure_waits = 0;
    MemoryUse memory;
  };
  Totals totals() const;

 private:
  struct Slot {
    bool done = false;
    bool unwanted = false;  // no thread waits: the reply and its error are dropped when they arrive
    Frame reply;
    std::optional<OpError> error;
  };
  struct FailedRun {
    uint64_t first_result_id, count;
    OpError error;
  };
  struct Credit {
    uint64_t sequence, bytes;
  };

  // Receives as the leader, or waits for the leader, until done(), loss or an interruption.
  template <class Done>
  Status wait_until(std::unique_lock<std::mutex>& lock, const KeepWaiting* keep_waiting, Done done);
  Status receive_as_leader(std::unique_lock<std::mutex>& lock, std::chrono::nanoseconds timeout);

  // Waits for this message's reply and removes its slot.
  Status take(std::unique_lock<std::mutex>& lock, uint64_t sequence, const KeepWaiting& keep_waiting,
              bool keep_expecting, Slot* result);

  // The following require mutex_.
  Status handle(Frame& frame);
  template <class Message>
  Status handle_reply(Frame& frame);
  Status handle_profile_part(Frame& frame);
  Status acknowledge(uint64_t sequence);
  void store_stats(const wire::WorkerStats* stats);
  std::optional<OpError> op_error(const wire::Error* error) const;
  void defer(OpError error);
  void set_lost(const Status& why);

  Transport& transport_;
  const ProgramCache& programs_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool receiving_ = false;          // a leader receives
  Status lost_;                     // ok, or kLost with the reason
  uint64_t lost_at_ = 0;            // when lost_ was set, in ns (monotonic_ns)
  std::map<uint64_t, Slot> slots_;  // by sequence
  std::vector<OpError> deferred_;
  uint64_t omitted_errors_ = 0;  // failures in excess of deferred_
  std::deque<FailedRun> failed_runs_;
  // ring buffer of the messages that are not acknowledged yet, in order
  std::array<Credit, kMaxUnacknowledged> credits_;
  size_t first_credit_ = 0;
  size_t credit_count_ = 0;
  size_t unacknowledged_bytes_ = 0;
  uint64_t last_sent_ = 0;
  uint64_t acknowledged_ = 0;
  bool has_background_work_ = false;
  Totals totals_;
  WorkerProfile profile_;  // what was received so far
  uint64_t profile_limit_ = 0;
  uint64_t profile_since_ = 0;  // sequence of the Start message
};

}  // namespace torch_remote::remote
