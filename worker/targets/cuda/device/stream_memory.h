#pragma once

#include <cstddef>

#include "worker/targets/cuda/device/driver.h"

namespace torch_remote::worker::cuda {

// GPU memory in the order of one stream: work that is queued after `allocate` and before `free` may use it. The memory
// comes from a pool of the driver. Some virtual GPUs have no pools. There, `free` waits for the stream. The GPU's
// context must be current. The driver must outlive this object.
class StreamMemory {
 public:
  StreamMemory() = default;
  // `pool`: null if the GPU has no memory pools.
  StreamMemory(const Driver& driver, MemoryPool pool, Stream stream) : driver_(&driver), pool_(pool), stream_(stream) {}

  Result allocate(DevicePointer* address, size_t bytes) const {
    return pool_ != nullptr ? driver_->mem_alloc_from_pool_async(address, bytes, pool_, stream_)
                            : driver_->mem_alloc(address, bytes);
  }
  Result free(DevicePointer address) const {
    if (pool_ != nullptr) return driver_->mem_free_async(address, stream_);
    const Result result = driver_->stream_synchronize(stream_);
    return result == Result::kSuccess ? driver_->mem_free(address) : result;
  }
  // Returns the pool's unused memory to the driver.
  Result trim() const { return pool_ != nullptr ? driver_->mem_pool_trim_to(pool_, 0) : Result::kSuccess; }

  // The driver's functions, for error messages.
  const char* allocate_function() const { return pool_ != nullptr ? "cuMemAllocFromPoolAsync" : "cuMemAlloc"; }
  const char* free_function() const { return pool_ != nullptr ? "cuMemFreeAsync" : "cuMemFree"; }

 private:
  const Driver* driver_ = nullptr;
  MemoryPool pool_ = nullptr;
  Stream stream_ = nullptr;
};

}  // namespace torch_remote::worker::cuda
