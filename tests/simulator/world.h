#pragma once

#include <poll.h>
#include <pthread.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <queue>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

// Threads, locks and time of a simulated run. The code under test is the product's own, unmodified. interpose.cpp
// replaces its calls of the C library (locks, condition variables, threads, clocks, sockets, poll). Only one thread
// runs at a time. Wherever a thread locks, waits or reads a clock, the seed selects which thread continues. Time is a
// number that grows when no thread can continue. So a seed determines a run.
//
// A world lives in its own process (runner.cpp forks one for each seed), and ends with it.
namespace torch_remote::simulator {

using Nanoseconds = uint64_t;
inline constexpr Nanoseconds kNever = UINT64_MAX;
inline constexpr Nanoseconds kMicrosecond = 1'000, kMillisecond = 1'000'000, kSecond = 1'000'000'000;

// SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next();
  // A number in [0, count).
  uint64_t below(uint64_t count) { return next() % count; }
  uint64_t between(uint64_t least, uint64_t most) { return least + below(most - least + 1); }
  bool chance(double probability) { return static_cast<double>(next() >> 11) * 0x1p-53 < probability; }

 private:
  uint64_t state_;
};

struct Thread {
  uint32_t id = 0, process = 0;
  void* (*start)(void*) = nullptr;
  void* argument = nullptr;
  pthread_t real{};
  std::atomic<uint32_t> go{0};
  bool ended = false, blocked = false, timed_out = false;
  const void* waits_for = nullptr;
  Nanoseconds deadline = kNever;
  std::vector<pollfd>* polled = nullptr;  // set while it polls
};

class World {
 public:
  explicit World(uint64_t seed);

  Random& random() { return random_; }
  Nanoseconds now() const { return now_; }
  // Adds a simulated process. Its threads and descriptors end together.
  uint32_t add_process(std::string name);
  // Kills the process at its current position. The locks of its threads become free, because a real process has its
  // own.
  void kill(uint32_t process);
  bool alive(uint32_t process) const { return processes_[process].alive; }
  const std::string& name(uint32_t process) const { return processes_[process].name; }
  void spawn(uint32_t process, std::function<void()> body);
  // Whether none of its threads runs any more.
  bool ended(uint32_t process) const;

  // Calls `event` at a later time, on the thread that runs then. It must not wait.
  void at(Nanoseconds time, std::function<void()> event);

  // -- For the calling thread:
  void pass(Nanoseconds time) { now_ += time; }
  void sleep_until(Nanoseconds time);
  // May let another thread continue.
  void maybe_switch();
  void yield();
  // Waits until `key` is woken. False: the deadline came first.
  bool block(const void* key, Nanoseconds deadline);
  void wake(const void* key, bool all);
  void lock(pthread_mutex_t* mutex);
  bool try_lock(pthread_mutex_t* mutex);
  void unlock(pthread_mutex_t* mutex);
  bool wait(pthread_cond_t* condition, pthread_mutex_t* mutex, Nanoseconds deadline);
  int create(pthread_t* thread, const pthread_attr_t* attributes, void* (*start)(void*), void* argument);
  void join(pthread_t thread);
  // Makes polling threads check their descriptors again.
  void readiness_changed();

  // Records an event for the hash and for the log. `what` is a literal.
  void note(std::string_view what, uint64_t a = 0, uint64_t b = 0);
  // Adds text to the log only.
  void log(const std::string& text);
  uint64_t hash() const { return hash_; }
  const std::deque<std::string>& recent() const { return recent_; }
  bool prints = false;  // prints each note at once

  // Fails the run. Never returns.
  [[noreturn]] void fail(const std::string& why);
  std::function<void(const std::string& why)> on_failure;
  // The readiness of a descriptor, as poll reports it (network.cpp).
  std::function<short(int descriptor, short events)> readiness;
  std::function<void(uint32_t process)> on_kill;

  Nanoseconds limit = kNever;  // a run that takes longer hangs
  double preemption = 0.05;    // probability that a thread stops where it could continue

 private:
  struct Process {
    std::string name;
    bool alive = true;
  };
  struct Mutex {
    Thread* owner = nullptr;
    uint32_t depth = 0;
  };
  struct Event {
    Nanoseconds time;
    uint64_t number;
    std::shared_ptr<std::function<void()>> run;
    bool operator>(const Event& other) const { return time != other.time ? time > other.time : number > other.number; }
  };

  static void* enter(void* thread);
  Thread* pick();
  void run_events();
  void go_to(Thread* next);
  void leave();

  Random random_;
  Nanoseconds now_ = 1000 * kSecond;
  std::vector<std::unique_ptr<Thread>> threads_;
  std::vector<Process> processes_;
  std::unordered_map<const void*, Mutex> mutexes_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  uint64_t event_count_ = 0, hash_ = 1469598103934665603u;
  std::vector<Thread*> candidates_;
  std::deque<std::string> recent_;
};

// Null outside of a run, and for threads that do not belong to it.
World* world();
Thread* self();
// Makes the calling thread the first one of a world.
void enter_world(World* world, uint32_t process);

}  // namespace torch_remote::simulator
