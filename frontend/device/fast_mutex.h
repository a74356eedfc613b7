#pragma once

#include <atomic>
#include <cstdint>

namespace torch_remote::frontend {

// A mutex for the record path, which locks it for each op and each destroyed tensor, nearly always without contention.
// A lock/unlock pair takes 8 ns; std::mutex takes 20 ns (`//tests/bench:run -- --only record-cpp`). It is the third
// mutex in U. Drepper, "Futexes Are Tricky": 0 is free, 1 is held, 2 is held with possible waiters.
class FastMutex {
 public:
  void lock() noexcept {
    uint32_t expected = 0;
    if (!state_.compare_exchange_strong(expected, 1, std::memory_order_acquire, std::memory_order_relaxed)) wait();
  }
  void unlock() noexcept {
    if (state_.exchange(0, std::memory_order_release) == 2) state_.notify_one();
  }

 private:
  void wait() noexcept {
    while (state_.exchange(2, std::memory_order_acquire) != 0) state_.wait(2, std::memory_order_relaxed);
  }

  std::atomic<uint32_t> state_{0};
};

}  // namespace torch_remote::frontend
