#pragma once

#include <pthread.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "frontend/device/fast_mutex.h"
#include "frontend/record/trace_encoder.h"
#include "ir/cost/cuts.h"
#include "ir/math_modes.h"

namespace torch_remote::frontend {

// The pass of a record. While a profile is recorded, ThreadState::pass is kUnknown after a trace was sent. The first
// record of the next trace therefore calls Recorder::enter_pass, which notes when that trace began. Other records need
// no check for this.
enum class Pass : uint8_t { kForward, kBackward, kUnknown };

// The recording state of one thread on one device. Guarded by ThreadTraces::mutex().
struct ThreadState {
  ThreadState(TraceEncoderGroup& encoders, ir::CutPlans& plans, uint64_t number)
      : encoder(encoders), cuts(plans), first(number << 40), sent(first) {}

  uint64_t thread = 0;  // the thread; 0 if it has ended
  TraceEncoder encoder;
  ir::Cuts cuts;
  Pass pass = Pass::kForward;        // pass of the last record, or kUnknown
  Pass last_pass = Pass::kForward;   // pass of the last record
  uint64_t trace_began = 0;          // ns, for a profile; 0: unknown
  uint32_t trace_thread = 0;         // profile's number of the thread that recorded the first op
  ir::MathModes math_modes = 0;      // modes of the last op that they affect (has_math_modes in recorder.cpp)
  bool math_modes_in_trace = false;  // the trace has such an op
  ir::MathModes determinism = 0;     // kDeterministic and kDeterministicWarnOnly of all records of the trace
  uint64_t first;                    // number of the thread's first record
  uint64_t sent;                     // number of the trace's first record; earlier ones were sent or dropped

  bool empty() const { return encoder.trace().empty(); }
  // Drops the trace, which will never run. The tensors that it would have created are lost.
  void drop_trace();
};

// The traces of one device, and the lock that guards them. Code that holds the lock neither needs nor waits for the
// GIL.
// Each thread's ops form a trace of their own, in program order, and only that thread's ops decide where it is cut. The
// interleaving of threads is random and must not be part of a key. Before a thread records an op that must run after
// another thread's recorded ops, those ops are sent (TraceSender). So the unsent traces may run in any order.
// Never destroyed, because tensors may die during exit.
class ThreadTraces {
 public:
  ThreadTraces() : last_(&add()) {}
  ThreadTraces(const ThreadTraces&) = delete;
  ThreadTraces& operator=(const ThreadTraces&) = delete;

  FastMutex& mutex() { return mutex_; }

  // The next functions are called with the lock held.

  // Never empty. It only grows, also while a function that sends has released the lock.
  const std::vector<std::unique_ptr<ThreadState>>& all() const { return all_; }
  // The state that recorded last.
  ThreadState& last() const { return *last_; }
  bool last_is_own() const { return last_->thread == this_thread(); }
  // This thread's state, or null.
  ThreadState* find_own() const { return find(this_thread()); }
  // The state of a thread that has ended, or null. Its trace may have records.
  ThreadState* find_ended() const { return find(0); }
  ThreadState& add() { return *all_.emplace_back(std::make_unique<ThreadState>(encoders_, plans_, all_.size())); }
  // Makes the state this thread's own until the thread ends, and the last one.
  void join(ThreadState& state);
  // Makes this thread's state the last one.
  void set_last(ThreadState& own) { last_ = &own; }

  // Whether more than one thread has recorded. Until then, records do not note what they write.
  bool has_several() const { return has_several_; }
  // Call it before the second thread records.
  void expect_several();
  // Whether other threads have recorded ops that are not sent.
  bool others_record(const ThreadState& own) const {
    return has_several_ &&
           std::ranges::any_of(all_, [&](const auto& state) { return state.get() != &own && !state->empty(); });
  }

  // Whether the storage had contents and lost them with a worker.
  bool is_lost(const RemoteStorage* storage) const { return encoders_.is_lost(storage); }
  // Counts workers; buffer ids of other sessions are invalid.
  uint32_t session() const { return encoders_.session; }
  // Drops all traces, and begins the next session.
  void drop_session();
  ir::CutLimits& limits() { return plans_.limits; }

  // The next functions take the lock. Any thread may call them.

  void set_limits(const ir::CutLimits& limits);
  // The value of remote::Event::first_record for the run of a compiled graph. In Numbers: the thread has no records.
  static constexpr uint64_t kNoRecords = ~uint64_t{0};
  // The numbers of this thread's records (remote::Event::first_record), which are consecutive: that of its first record
  // and that of the next one.
  struct Numbers {
    uint64_t first = kNoRecords, next = kNoRecords;
  };
  Numbers numbers();
  // For torch.remote.profile: from now on, the time at which each trace begins is noted.
  void profile_starts();

 private:
  // An id that is not 0 and differs for each live thread.
  static uint64_t this_thread() noexcept { return static_cast<uint64_t>(pthread_self()); }
  ThreadState* find(uint64_t thread) const;
  static void thread_ends() noexcept;

  FastMutex mutex_;
  TraceEncoderGroup encoders_;
  ir::CutPlans plans_;
  std::vector<std::unique_ptr<ThreadState>> all_;
  ThreadState* last_;
  bool has_several_ = false;

  static inline constinit ThreadTraces* first_ = nullptr;  // head of the list of all objects, linked by next_
  ThreadTraces* const next_ = std::exchange(first_, this);
};

}  // namespace torch_remote::frontend
