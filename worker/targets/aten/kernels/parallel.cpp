#include "worker/targets/aten/kernels/parallel.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <exception>

// From GNU's OpenMP, which torch is built with; LLVM's has them too. GOMP_parallel runs `function` on `threads`
// threads, of which the caller is one; these threads may call the other functions.
extern "C" {
__attribute__((weak)) void GOMP_parallel(void (*function)(void*), void* data, unsigned threads, unsigned flags);
__attribute__((weak)) void GOMP_barrier();
__attribute__((weak)) int omp_get_thread_num();
__attribute__((weak)) int omp_get_num_threads();
}

namespace torch_remote::worker::aten {
namespace {

// Parts per thread: with several parts, other threads take those that a late thread has not begun.
constexpr int64_t kPartsPerThread = 4;

struct Region {
  const std::function<void(int64_t, int64_t)>& body;
  const int64_t count, size, parts;
  std::atomic<int64_t> next{0};
  std::atomic<bool> failed{false};
  std::exception_ptr failure = nullptr;

  void work() {
    for (int64_t part = next.fetch_add(1); part < parts; part = next.fetch_add(1)) {
      try {
        body(part * size, std::min(count, (part + 1) * size));
      } catch (...) {
        if (!failed.exchange(true)) failure = std::current_exception();
      }
    }
  }
};

}  // namespace

void run_parallel(int64_t count, int64_t grain, const std::function<void(int64_t, int64_t)>& body) {
  if (count <= 0) return;
  const int64_t threads = at::in_parallel_region() || !GOMP_parallel ? 1 : at::get_num_threads();
  if (threads <= 1 || count <= grain) return body(0, count);
  const int64_t most = threads * kPartsPerThread, size = std::max(grain, (count + most - 1) / most);
  Region region{body, count, size, (count + size - 1) / size};
  GOMP_parallel([](void* data) { static_cast<Region*>(data)->work(); }, &region,
                static_cast<unsigned>(std::min(threads, region.parts)), 0);
  if (region.failure) std::rethrow_exception(region.failure);
}

void TeamMember::wait() const {
  if (count > 1) GOMP_barrier();
}

void run_team(int64_t most, const std::function<void(const TeamMember&)>& body) {
  const bool able = GOMP_parallel && GOMP_barrier && omp_get_thread_num && omp_get_num_threads;
  if (most <= 1 || !able || at::in_parallel_region()) return body({0, 1});
  GOMP_parallel(
      [](void* data) {
        const auto& work = *static_cast<const std::function<void(const TeamMember&)>*>(data);
        work({omp_get_thread_num(), omp_get_num_threads()});
      },
      const_cast<void*>(static_cast<const void*>(&body)), static_cast<unsigned>(most), 0);
}

}  // namespace torch_remote::worker::aten
