#include "worker/targets/aten/threads.h"

#include <ATen/Parallel.h>
#include <unistd.h>

#include <algorithm>

// From GNU's OpenMP, which torch is built with; LLVM's has them too. GOMP_parallel_start begins a parallel region in
// which `function` runs on the other threads, and GOMP_parallel_end ends it.
extern "C" {
__attribute__((weak)) void GOMP_parallel_start(void (*function)(void*), void* data, unsigned threads);
__attribute__((weak)) void GOMP_parallel_end();
__attribute__((weak)) int omp_get_thread_num();
}

namespace torch_remote::worker::aten {
namespace {

std::atomic<uint32_t> asleep{0};  // 1 while the threads must stay asleep

}  // namespace

void Cores::sleeps(int index) {
  Thread& thread = threads_[index];
  thread.core = sched_getcpu();
  thread.id.store(gettid(), std::memory_order_release);
}

void Cores::woke(int index) {
  if (threads_[index].moved) sched_setaffinity(0, sizeof(all_), &all_);
}

void Cores::forget() {
  for (int i = 0; i < count_; ++i) {
    threads_[i].id.store(0, std::memory_order_relaxed);
    threads_[i].moved = false;
  }
}

void Cores::spread() {
  const int here = sched_getcpu();
  if (here < 0 || sched_getaffinity(0, sizeof(all_), &all_) != 0) return;
  cpu_set_t left = all_;
  CPU_CLR(here, &left);
  const auto take = [&](int core) {
    const bool free = core >= 0 && CPU_ISSET(core, &left);
    if (free) CPU_CLR(core, &left);
    return free;
  };
  for (int i = 1; i < count_; ++i) {
    Thread& thread = threads_[i];
    if (thread.id.load(std::memory_order_acquire) == 0) continue;
    thread.moved = !take(thread.core);
  }
  int core = 0;
  for (int i = 1; i < count_; ++i) {
    Thread& thread = threads_[i];
    if (!thread.moved) continue;
    while (core < CPU_SETSIZE && !take(core)) ++core;
    cpu_set_t only;
    CPU_ZERO(&only);
    if (core < CPU_SETSIZE) CPU_SET(core, &only);
    thread.moved = core < CPU_SETSIZE && sched_setaffinity(thread.id, sizeof(only), &only) == 0;
  }
}

Threads::Threads(int count, bool fixed) {
  if (fixed) return;
  if (count > 0) at::set_num_threads(count);
  all_ = count_ = at::get_num_threads();
  cpu_set_t cores;
  const int core_count = sched_getaffinity(0, sizeof(cores), &cores) == 0 ? CPU_COUNT(&cores) : all_;
  count_leaving_core_ = std::clamp(core_count - 1, 1, all_);
  cores_ = std::make_unique<Cores>(all_);
}

void Threads::change(int count) {
  count_ = count;
  used_ |= count > 1;
  at::set_num_threads(count);
}

// Starts a parallel region whose other threads sleep until they are woken. This thread leaves the region in `wake`.
void Threads::sleep() {
  if (sleeping_ || !used_ || all_ <= 1) return;
  if (!GOMP_parallel_start || !GOMP_parallel_end || !omp_get_thread_num) return;
  used_ = false;
  sleeping_ = true;
  cores_->forget();
  asleep.store(1, std::memory_order_relaxed);
  const auto sleep = [](void* data) {
    auto& cores = *static_cast<Cores*>(data);
    const int index = omp_get_thread_num();
    cores.sleeps(index);
    asleep.wait(1);
    cores.woke(index);
  };
  GOMP_parallel_start(sleep, cores_.get(), static_cast<unsigned>(all_));
}

void Threads::begin_wake() {
  if (!sleeping_ || asleep.load(std::memory_order_relaxed) == 0) return;
  cores_->spread();
  asleep.store(0, std::memory_order_release);
  asleep.notify_all();
}

void Threads::wake() {
  if (!sleeping_) return;
  begin_wake();
  GOMP_parallel_end();
  sleeping_ = false;
  used_ = true;
  at::set_num_threads(count_);  // what was set inside of the region is lost when the region ends
}

}  // namespace torch_remote::worker::aten
