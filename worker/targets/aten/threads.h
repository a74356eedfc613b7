#pragma once

#include <sched.h>

#include <atomic>
#include <memory>

#include "worker/runner/plugin.h"

// Chooses how many threads an op uses, and what the threads do between two ops.
//
// Torch and MKL use all threads even for small work; an op of less than about twenty microseconds gets one thread here.
// While a client on this machine computes, parallel ops leave it a core: with one thread too many, each op would wait
// for the thread that waits for a core. Between two ops OpenMP's threads spin, because waking one takes longer than
// many an op. A worker that waits for messages puts them to sleep.
namespace torch_remote::worker::aten {

// A node with at least this much work (ir/cost/work.h) gets several threads: about 20 µs of one core.
inline constexpr double kMinParallelWork = 1 << 20;
// We wake sleeping threads for a run whose parallel nodes have at least this much work: some 600 µs of one core. A
// wake-up takes 50 to 500 µs, during which the threads contribute nothing.
inline constexpr double kMinWakeWork = 1 << 25;

// Chooses the cores on which sleeping threads wake. The *caller* is the thread that runs ops and wakes the others. A
// scheduler may wake a thread on the core that it slept on, even if that core is busy and others are idle. This happens
// on machines that do not report which cores share a cache. The thread and the caller then alternate on this core for
// milliseconds. So we move such threads to another core for the wake-up, without pinning them.
class Cores {
 public:
  explicit Cores(int count) : count_(count), threads_(new Thread[static_cast<size_t>(count)]) {}

  // Call this in thread `index` (1 to count - 1) before it sleeps.
  void sleeps(int index);
  // Call this in the thread after it woke: it may run on all cores again.
  void woke(int index);

  // The caller calls this while the threads are awake, before they sleep again.
  void forget();
  // The caller calls this before it wakes the threads. Threads that would wake on its core, or on the same core as
  // another thread, are moved to unused cores.
  void spread();

 private:
  struct Thread {
    std::atomic<int> id = 0;  // 0 while the thread does not sleep
    int core = 0;             // the core on which it went to sleep
    bool moved = false;       // the caller moved it, for this sleep
  };

  const int count_;
  cpu_set_t all_{};  // the cores that the caller may run on
  std::unique_ptr<Thread[]> threads_;
};

// The threads that torch uses when this thread calls it. In the user's process the user chooses their number (`fixed`).
// One object at a time may be in use, by one thread.
class Threads {
 public:
  // `count`: the largest number of threads; 0 means torch's default. `fixed`: never change the number.
  Threads(int count, bool fixed);
  ~Threads() { wake(); }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

  // Whether more than one thread may be used.
  bool can_change() const { return all_ > 1; }

  void set(bool parallel) { use(parallel ? all_ : 1); }
  // For a parallel op while somebody else needs a core.
  void leave_one_core() { use(count_leaving_core_); }
  // Whether a core is left to others when all threads run.
  bool has_spare_core() const { return count_leaving_core_ == all_; }
  bool sleeping() const { return sleeping_; }
  // Whether leave_one_core() leaves a single thread.
  bool leaves_one_thread() const { return count_leaving_core_ == 1; }

  // No op will come for a while: spinning threads go to sleep at once. Until they wake, the calling thread works alone.
  void sleep();
  // The threads will be needed soon: wakes them without waiting.
  void begin_wake();
  // Waits until the threads are awake.
  void wake();

 private:
  void use(int count) {
    if (count > 1 && sleeping_) wake();
    if (count != count_) change(count);
  }
  void change(int count);

  int all_ = 1;
  int count_leaving_core_ = 1;  // the number of threads that leaves a core to others
  int count_ = 1;               // the number in use
  bool used_ = true;            // several threads ran since the last sleep
  bool sleeping_ = false;
  std::unique_ptr<Cores> cores_;  // the cores of the sleeping threads
};

// Whether an op should leave the client a core (leave_one_core). True if all threads would take all cores and the
// client computes; for a `small` op also if the client only polls for the answer.
inline bool should_leave_core(const tr_host& host, const Threads& threads, bool small) {
  if (threads.has_spare_core() || !host.client_activity) return false;
  const tr_client_activity client = host.client_activity(host.context);
  return client == TR_CLIENT_COMPUTING || (client == TR_CLIENT_POLLING && small);
}

}  // namespace torch_remote::worker::aten
