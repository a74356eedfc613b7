#pragma once

#include <cstdint>
#include <string_view>
#include <utility>

#include "ir/status.h"
#include "worker/device/memory.h"
#include "worker/device/no_memory.h"

namespace torch_remote::worker {

// Bytes of this process that count against the session's memory limit, until this object is destroyed.
class Charge {
 public:
  Charge() = default;
  ~Charge() { drop(); }
  Charge(Charge&& other) noexcept
      : memory_(std::exchange(other.memory_, nullptr)), nbytes_(std::exchange(other.nbytes_, 0)) {}
  Charge& operator=(Charge&& other) noexcept {
    if (this == &other) return *this;
    drop();
    memory_ = std::exchange(other.memory_, nullptr);
    nbytes_ = std::exchange(other.nbytes_, 0);
    return *this;
  }

  // Call it before the allocation. `memory`: the allocator with the limit; null: there is none. `what`: what the bytes
  // are for. Returns kOutOfMemory if the limit leaves fewer bytes.
  Status take(CachingAllocator* memory, uint64_t nbytes, std::string_view what) {
    drop();
    if (memory == nullptr || nbytes == 0) return {};
    if (!memory->charge(nbytes)) return no_memory_for(what, nbytes);
    memory_ = memory;
    nbytes_ = nbytes;
    return {};
  }
  void drop() {
    if (memory_ != nullptr) memory_->discharge(nbytes_);
    memory_ = nullptr;
    nbytes_ = 0;
  }

 private:
  CachingAllocator* memory_ = nullptr;
  uint64_t nbytes_ = 0;
};

}  // namespace torch_remote::worker
