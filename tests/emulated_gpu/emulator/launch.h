#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "tests/emulated_gpu/emulator/types.h"

// A kernel that is ready to run, and one launch of it.
namespace torch_remote::codegen::emulator {

inline constexpr uint32_t kWarp = 32;
inline constexpr uint64_t kMaxShared = 227 << 10;  // bytes per block, as on sm_90

// A variable in shared memory. The dynamic one has no fixed size.
struct SharedVariable {
  std::string name;
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

struct KernelImage {
  std::string name;
  KernelAttributes attributes;
  bool fibers = false;  // threads may wait for each other, so each needs a stack
  std::vector<SharedVariable> shared;
  uint64_t dynamic_offset = 0;  // where dynamic shared memory begins
  void (*run)(void* const* arguments) = nullptr;
};

// A device variable. The symbol `image` has its initial bytes; the code finds it through the pointer `pointer`.
struct DeviceVariable {
  std::string name;
  std::string image, pointer;
  uint64_t bytes = 0;
  uint64_t alignment = 1;
};

struct Launch {
  const KernelImage* kernel = nullptr;
  const std::vector<std::string>* sites = nullptr;  // descriptions of instructions for messages, by number
  Dim3 grid, block;
  uint64_t dynamic_shared = 0;
  void* const* arguments = nullptr;
  LaunchOptions options;

  std::atomic<bool> stop = false;  // there is a finding, or the time is over
  std::atomic<bool> timed_out = false;

  uint64_t shared_bytes() const { return kernel->dynamic_offset + dynamic_shared; }
  // Only the first finding is reported.
  void report(std::string text) {
    const std::lock_guard lock(mutex_);
    if (finding_.empty()) finding_ = std::move(text);
    stop = true;
  }
  const std::string& finding() const { return finding_; }

 private:
  std::mutex mutex_;
  std::string finding_;
};

// The coordinates of linear index `i` in `size`.
inline Dim3 split(uint64_t i, Dim3 size) {
  return {static_cast<uint32_t>(i % size.x), static_cast<uint32_t>(i / size.x % size.y),
          static_cast<uint32_t>(i / size.x / size.y)};
}
inline std::string text(Dim3 d) {
  return "(" + std::to_string(d.x) + "," + std::to_string(d.y) + "," + std::to_string(d.z) + ")";
}

}  // namespace torch_remote::codegen::emulator
