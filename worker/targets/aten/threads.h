#pragma once

#include <sched.h>

#include <atomic>
#include <memory>

#include "worker/runner/plugin.h"

// How many threads an op is given, and what they do between two ops. Torch and MKL use all of them for work far
// too small for it: an op that is done in some twenty microseconds gets one thread. While a client on this machine
// computes, parallel ops leave it a core: with one thread too many, each op would wait for the thread that waits for a
// core. Between two ops OpenMP's threads spin: to wake one takes longer than many an op. A worker that waits for
// messages puts them to sleep.
namespace torch_remote::worker::aten {

// What a node has to be worth (ir/work.h) to be given more: about 20 us of one core.
inline constexpr double kWorthThreads = 1 << 20;
// What the parallel ops of a run have to be worth to wake threads that rest: some 600 us of one core. A wake-up takes
// 50 to 500 us, and for that long nothing of theirs is done.
inline constexpr double kWorthWaking = 1 << 25;

// On which cores threads wake that sleep. A scheduler may wake each on the core that it slept on, even if that is busy
// and others are idle (machines that do not tell of a cache which cores share): it and the caller take turns then, for
// milliseconds. Threads are put elsewhere for that moment, and pinned nowhere.
class Cores {
 public:
  explicit Cores(int count) : count_(count), threads_(new Thread[static_cast<size_t>(count)]) {}

  // Of the threads 1 and up of `count`: the calling one is going to sleep.
  void sleeps(int index);
  // It woke up: it may be anywhere again.
  void woke(int index);

  // Of their caller, while they are awake, before the next sleep.
  void forget();
  // Of their caller, before it wakes them: those that would wake on its core, or on the same one as another of them,
  // wake on one that is left.
  void spread();

 private:
  struct Thread {
    std::atomic<int> id = 0;  // 0: it does not sleep yet
    int core = 0;             // that it went to sleep on
    bool moved = false;       // by the caller, for this sleep
  };

  const int count_;
  cpu_set_t all_{};  // that the caller may run on
  std::unique_ptr<Thread[]> threads_;
};

// The threads that torch uses when called from this thread. Not in the user's process, whose choice they are. One
// object at a time may be in use, by one thread.
class Threads {
 public:
  // `count`: at most so many; 0: torch's default. `fixed`: never changed.
  Threads(int count, bool fixed);
  ~Threads() { wake(); }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

  // Whether there is more than one way.
  bool can_change() const { return all_ > 1; }

  void set(bool parallel) { use(parallel ? all_ : 1); }
  // For a parallel op while somebody else needs a core.
  void set_but_one() { use(but_one_); }
  // Whether a core is left to others when all threads run.
  bool spare_core() const { return but_one_ == all_; }
  bool resting() const { return resting_; }
  // Whether not even two threads may run then.
  bool one_but_one() const { return but_one_ == 1; }

  // No op will come for a while: those that spin sleep at once. Until they wake, work is done by the calling thread
  // alone.
  void rest();
  // They will soon be wanted: they wake while the caller goes on.
  void expect();
  // Waits until they are there.
  void wake();

 private:
  void use(int count) {
    if (count > 1 && resting_) wake();
    if (count != count_) change(count);
  }
  void change(int count);

  int all_ = 1;
  int but_one_ = 1;   // as many as leave a core
  int count_ = 1;     // in use
  bool used_ = true;  // since the last rest
  bool resting_ = false;
  std::unique_ptr<Cores> cores_;  // of those that rest
};

// Whether work is to leave a core to the client, with set_but_one: where all threads take all cores and the client
// computes; also where it only looks for an answer, if the work is `small`.
inline bool leaves_core(const tr_host& host, const Threads& threads, bool small) {
  if (threads.spare_core() || !host.client_activity) return false;
  const tr_client client = host.client_activity(host.context);
  return client == TR_CLIENT_COMPUTES || (client == TR_CLIENT_LOOKS && small);
}

}  // namespace torch_remote::worker::aten
