#pragma once

#include <chrono>
#include <cstdint>

namespace torch_remote::worker {

// CLOCK_MONOTONIC in ns.
inline uint64_t monotonic_ns() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
}

}  // namespace torch_remote::worker
