#include "tests/simulator/world.h"

#include <dlfcn.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

namespace torch_remote::simulator {
namespace {

World* g_world = nullptr;
thread_local Thread* t_self = nullptr;

constexpr size_t kRecent = 120;

void futex_wait(std::atomic<uint32_t>& word) {
  while (word.load(std::memory_order_acquire) == 0) {
    syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 0, nullptr, nullptr, 0);
  }
  word.store(0, std::memory_order_relaxed);
}

void futex_wake(std::atomic<uint32_t>& word) {
  word.store(1, std::memory_order_release);
  syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
}

template <class Function>
Function* real(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

bool is_recursive(const pthread_mutex_t* mutex) { return (mutex->__data.__kind & 3) == PTHREAD_MUTEX_RECURSIVE; }

}  // namespace

uint64_t Random::next() {
  uint64_t z = (state_ += 0x9E3779B97F4A7C15u);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

World* world() { return t_self != nullptr ? g_world : nullptr; }
Thread* self() { return t_self; }

World::World(uint64_t seed) : random_(seed) {}

void enter_world(World* world, uint32_t process) {
  g_world = world;
  world->spawn(process, {});
}

uint32_t World::add_process(std::string name) {
  processes_.push_back({std::move(name)});
  return static_cast<uint32_t>(processes_.size() - 1);
}

void World::kill(uint32_t process) {
  note("kill", process);
  processes_[process].alive = false;
  for (auto& [address, mutex] : mutexes_) {
    if (mutex.owner != nullptr && mutex.owner->process == process) mutex = {};
  }
  for (const auto& thread : threads_) {
    if (thread->blocked && mutexes_.contains(thread->waits_for)) thread->blocked = false;
  }
  if (on_kill) on_kill(process);
}

bool World::ended(uint32_t process) const {
  return std::ranges::all_of(threads_, [&](const auto& t) { return t->process != process || t->ended; });
}

void World::at(Nanoseconds time, std::function<void()> event) {
  events_.push({std::max(time, now_), event_count_++, std::make_shared<std::function<void()>>(std::move(event))});
}

// --- which thread runs -----------------------------------------------------------------------------------------------

void World::run_events() {
  while (!events_.empty() && events_.top().time <= now_) {
    const auto run = events_.top().run;
    events_.pop();
    (*run)();
  }
}

Thread* World::pick() {
  for (;;) {
    run_events();
    candidates_.clear();
    Nanoseconds next = events_.empty() ? kNever : events_.top().time;
    for (const auto& thread : threads_) {
      if (thread->ended || !processes_[thread->process].alive) continue;
      if (thread->blocked && thread->deadline <= now_) {
        thread->blocked = false;
        thread->timed_out = true;
      }
      if (!thread->blocked) {
        candidates_.push_back(thread.get());
      } else {
        next = std::min(next, thread->deadline);
      }
    }
    if (!candidates_.empty()) return candidates_[random_.below(candidates_.size())];
    if (next == kNever) fail("nobody can go on: a deadlock, or a wake-up that was lost");
    now_ = std::max(now_, next);
    if (now_ > limit) fail("not done in time: a hang");
  }
}

void World::go_to(Thread* next) {
  Thread* const me = t_self;
  if (next == me) return;
  futex_wake(next->go);
  futex_wait(me->go);
}

void World::leave() {
  t_self->ended = true;
  wake(t_self, true);
  futex_wake(pick()->go);
  t_self = nullptr;
}

void World::maybe_switch() {
  if (now_ > limit) fail("not done in time: a hang");
  if ((!events_.empty() && events_.top().time <= now_) || random_.chance(preemption) ||
      !processes_[t_self->process].alive) {
    go_to(pick());
  }
}

void World::yield() {
  pass(random_.between(1, 20) * kMicrosecond);
  if (now_ > limit) fail("not done in time: a hang");
  go_to(pick());
}

bool World::block(const void* key, Nanoseconds deadline) {
  Thread& me = *t_self;
  me.blocked = true;
  me.timed_out = false;
  me.waits_for = key;
  me.deadline = deadline;
  go_to(pick());
  me.waits_for = nullptr;
  me.deadline = kNever;
  return !me.timed_out;
}

void World::wake(const void* key, bool all) {
  for (const auto& thread : threads_) {
    if (!thread->blocked || thread->waits_for != key) continue;
    thread->blocked = false;
    if (!all) return;
  }
}

void World::sleep_until(Nanoseconds time) {
  static constexpr char kSleep = 0;
  block(&kSleep, time);
}

void World::readiness_changed() {
  for (const auto& thread : threads_) {
    if (!thread->blocked || thread->polled == nullptr) continue;
    for (const pollfd& polled : *thread->polled) {
      if (readiness(polled.fd, polled.events) != 0) thread->blocked = false;
    }
  }
}

// --- threads and locks -----------------------------------------------------------------------------------------------

void* World::enter(void* argument) {
  auto* thread = static_cast<Thread*>(argument);
  t_self = thread;
  futex_wait(thread->go);
  void* result = thread->start(thread->argument);
  g_world->leave();
  return result;
}

int World::create(pthread_t* thread, const pthread_attr_t* attributes, void* (*start)(void*), void* argument) {
  static auto* const create_real =
      real<int(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*)>("pthread_create");
  auto& made = threads_.emplace_back(std::make_unique<Thread>());
  made->id = static_cast<uint32_t>(threads_.size() - 1);
  made->process = t_self->process;
  made->start = start;
  made->argument = argument;
  const int error = create_real(&made->real, attributes, enter, made.get());
  if (error != 0) {
    threads_.pop_back();
    return error;
  }
  *thread = made->real;
  note("thread", made->id, made->process);
  maybe_switch();
  return 0;
}

void World::join(pthread_t thread) {
  static auto* const join_real = real<int(pthread_t, void**)>("pthread_join");
  for (size_t i = 0; i < threads_.size(); ++i) {
    Thread* const other = threads_[i].get();  // other threads may add threads meanwhile
    if (other->real != thread || other->start == nullptr) continue;
    while (!other->ended) block(other, kNever);
    other->start = nullptr;  // the thread id may be reused
    join_real(thread, nullptr);
    return;
  }
}

void World::spawn(uint32_t process, std::function<void()> body) {
  if (t_self == nullptr) {
    auto& first = threads_.emplace_back(std::make_unique<Thread>());
    first->process = process;
    t_self = first.get();
    return;
  }
  const uint32_t mine = std::exchange(t_self->process, process);
  const double preempts = std::exchange(preemption, 0);
  pthread_t thread;
  create(
      &thread, nullptr,
      [](void* argument) -> void* {
        const std::unique_ptr<std::function<void()>> run(static_cast<std::function<void()>*>(argument));
        (*run)();
        return nullptr;
      },
      new std::function<void()>(std::move(body)));
  t_self->process = mine;
  preemption = preempts;
}

void World::lock(pthread_mutex_t* mutex) {
  maybe_switch();
  while (!try_lock(mutex)) {
    if (mutexes_[mutex].owner == t_self) fail("a thread locks what it has locked");
    block(mutex, kNever);
  }
}

bool World::try_lock(pthread_mutex_t* mutex) {
  Mutex& state = mutexes_[mutex];
  if (state.owner != nullptr && !(state.owner == t_self && is_recursive(mutex))) return false;
  state.owner = t_self;
  ++state.depth;
  return true;
}

void World::unlock(pthread_mutex_t* mutex) {
  Mutex& state = mutexes_[mutex];
  if (state.depth > 0) --state.depth;
  if (state.depth > 0) return;
  state.owner = nullptr;
  wake(mutex, true);
  maybe_switch();
}

bool World::wait(pthread_cond_t* condition, pthread_mutex_t* mutex, Nanoseconds deadline) {
  Mutex& state = mutexes_[mutex];
  state = {};
  wake(mutex, true);
  // Occasionally a spurious wakeup, as the standard allows.
  const bool in_vain = random_.chance(0.01);
  const bool woken = block(condition, in_vain ? std::min(deadline, now_ + kMicrosecond) : deadline);
  const bool in_time = woken || now_ < deadline;
  while (!try_lock(mutex)) block(mutex, kNever);
  return in_time;
}

// --- what happened ---------------------------------------------------------------------------------------------------

void World::note(std::string_view what, uint64_t a, uint64_t b) {
  const auto mix = [this](uint64_t value) {
    for (int i = 0; i < 8; ++i, value >>= 8) hash_ = (hash_ ^ (value & 0xFF)) * 1099511628211u;  // FNV-1a
  };
  for (const char c : what) hash_ = (hash_ ^ static_cast<uint8_t>(c)) * 1099511628211u;
  mix(now_);
  mix(a);
  mix(b);
  mix(t_self ? t_self->id : 0);
  char line[160];
  std::snprintf(line, sizeof(line), "%14.6f ms  %-9s thread %-2u %-26.*s %llu %llu",
                static_cast<double>(now_ - 1000 * kSecond) / kMillisecond,
                t_self ? processes_[t_self->process].name.c_str() : "", t_self ? t_self->id : 0,
                static_cast<int>(what.size()), what.data(), static_cast<unsigned long long>(a),
                static_cast<unsigned long long>(b));
  if (prints) std::printf("%s\n", line);
  recent_.emplace_back(line);
  if (recent_.size() > kRecent) recent_.pop_front();
}

void World::log(const std::string& text) {
  if (prints) std::printf("%s\n", text.c_str());
  recent_.push_back(text);
}

void World::fail(const std::string& why) {
  on_failure(why);
  _exit(1);
}

}  // namespace torch_remote::simulator
