#include "worker/aten/threads.h"

#include <ATen/Parallel.h>
#include <sched.h>

#include <algorithm>
#include <atomic>

// Of GNU's OpenMP, which torch is built with, and of LLVM's: begins a parallel region in which `function` runs on the
// other threads, and ends it.
extern "C" {
__attribute__((weak)) void GOMP_parallel_start(void (*function)(void*), void* data, unsigned threads);
__attribute__((weak)) void GOMP_parallel_end();
}

namespace torch_remote::worker::aten {
namespace {

std::atomic<uint32_t> asleep{0};  // 1: threads at rest stay there

}  // namespace

Threads::Threads(int count, bool fixed) {
  if (fixed) return;
  if (count > 0) at::set_num_threads(count);
  all_ = count_ = at::get_num_threads();
  cpu_set_t cores;
  const int core_count = sched_getaffinity(0, sizeof(cores), &cores) == 0 ? CPU_COUNT(&cores) : all_;
  but_one_ = std::clamp(core_count - 1, 1, all_);
}

void Threads::change(int count) {
  count_ = count;
  used_ |= count > 1;
  at::set_num_threads(count);
}

// A parallel region whose other threads wait for the end of the rest, and which this thread leaves when it wakes them.
void Threads::rest() {
  if (resting_ || !used_ || all_ <= 1 || !GOMP_parallel_start || !GOMP_parallel_end) return;
  used_ = false;
  resting_ = true;
  asleep.store(1, std::memory_order_relaxed);
  GOMP_parallel_start([](void*) { asleep.wait(1); }, nullptr, static_cast<unsigned>(all_));
}

void Threads::expect() {
  if (!resting_ || !asleep.exchange(0, std::memory_order_release)) return;
  asleep.notify_all();
}

void Threads::wake() {
  if (!resting_) return;
  expect();
  GOMP_parallel_end();
  resting_ = false;
  used_ = true;
  at::set_num_threads(count_);  // what was set inside of the region ended with it
}

}  // namespace torch_remote::worker::aten
