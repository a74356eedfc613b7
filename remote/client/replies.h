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

// What comes from the worker: replies, matched by sequence; acknowledgements, which give credits back; failures.
//
// There is no thread for it. Whoever waits receives, one at a time (the leader); the others wait for it, and one of
// them takes over when it has what it wanted.
namespace torch_remote::remote {

// Thread safe.
class Replies {
 public:
  Replies(Transport& transport, const ProgramCache& programs) : transport_(transport), programs_(programs) {}

  // Waits until `messages` more with `bytes` of uploads may be on their way.
  Status reserve(size_t messages, size_t bytes);
  // Waits until a quarter of what may be on its way is free: reserve then hardly ever waits. Unlike it, this asks
  // `keep_waiting`, which takes locks of the caller's (Python's): call it with none held.
  Status throttle(const KeepWaiting& keep_waiting);
  // This message, the next one, is about to be sent.
  void sending(uint64_t sequence, size_t bytes);
  // Its reply will be waited for.
  void expect(uint64_t sequence);
  // Its reply will not be waited for any more.
  void forget(uint64_t sequence);
  // Takes what has come already.
  void drain();
  // Whether a wait for it would return at once: it has come, or the worker is lost.
  bool has(uint64_t sequence) const;

  // Waits for the reply to a message that was announced by `expect`. A failure that it tells is returned and set in
  // *error. After an interruption its reply is not expected any more; `again`: it is, and can be waited for again.
  Status wait(uint64_t sequence, const KeepWaiting& keep_waiting, Frame* reply, OpError* error, bool again = false);

  // Failures that nobody has waited for: of programs that could not be built, and in replies to interrupted waits.
  // Those of *error, a synchronisation's, come after them in it.
  void take_deferred(OpError* error);

  // What the worker records after this message is kept as it comes, at most `limit` events.
  void start_profile(uint64_t limit, uint64_t sequence);
  // What came since then.
  WorkerProfile take_profile();

  // A run that cannot be sent: `error` is told by the wait for this run (`sequence`), by reads of the buffers
  // [base, base + count) that it should have made, or else by take_deferred.
  void fail(uint64_t sequence, uint64_t base, uint64_t count, OpError error);
  // The error of `fail` that made this buffer impossible.
  std::optional<OpError> missing(uint64_t buffer) const;

  // The connection failed while sending.
  void lose(const Status& why);
  // ok, or kLost with why.
  Status health() const;
  uint64_t acknowledged() const;
  // What is acknowledged is not all done: ops go on in the background of the worker.
  bool at_work() const;
  uint64_t last_sent() const;

  struct Totals {
    uint64_t bytes_received = 0;  // control
    uint64_t kernels_compiled = 0;
    uint64_t groups_refused = 0;
    uint64_t back_pressure_waits = 0;
    MemoryUse memory;
  };
  Totals totals() const;

 private:
  struct Slot {
    bool done = false;
    bool unwanted = false;  // goes, with its error, when it comes
    Frame reply;
    std::optional<OpError> error;
  };
  struct Missing {
    uint64_t base, count;
    OpError error;
  };
  struct Credit {
    uint64_t sequence, bytes;
  };

  // Receives, or waits for who does, until done(), loss or an interruption.
  template <class Done>
  Status wait_until(std::unique_lock<std::mutex>& lock, const KeepWaiting* keep_waiting, Done done);
  Status receive_as_leader(std::unique_lock<std::mutex>& lock, std::chrono::nanoseconds timeout);

  // What came for this message, which is then forgotten.
  Status take(std::unique_lock<std::mutex>& lock, uint64_t sequence, const KeepWaiting& keep_waiting, bool again,
              Slot* result);

  // With mutex_ held.
  Status handle(Frame& frame);
  template <class Message>
  Status handle_reply(Frame& frame);
  Status handle_profile_part(Frame& frame);
  Status acknowledge(uint64_t sequence);
  void note_use(const wire::WorkerUse* use);
  std::optional<OpError> op_error(const wire::Error* error) const;
  void defer(OpError error);
  void set_lost(const Status& why);

  Transport& transport_;
  const ProgramCache& programs_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool receiving_ = false;
  Status lost_;
  uint64_t lost_at_ = 0;
  std::map<uint64_t, Slot> slots_;  // by sequence
  std::vector<OpError> deferred_;
  uint64_t not_listed_ = 0;  // beside these
  std::deque<Missing> missing_;
  std::array<Credit, kMaxUnacknowledged> credits_;  // a ring: not acknowledged yet, in order
  size_t first_credit_ = 0;
  size_t credit_count_ = 0;
  size_t unacknowledged_bytes_ = 0;
  uint64_t last_sent_ = 0;
  uint64_t acknowledged_ = 0;
  bool at_work_ = false;
  Totals totals_;
  WorkerProfile profile_;  // so far
  uint64_t profile_limit_ = 0;
  uint64_t profile_since_ = 0;  // sequence
};

}  // namespace torch_remote::remote
