#pragma once

#include <cstddef>
#include <memory>

#include "worker/targets/cuda/device/gpu.h"

namespace torch_remote::worker::cuda {

// Whether the GPU can copy from or to this host memory directly, at the speed of the bus. This holds for segments of
// shared memory that are registered with the driver. The second call for a segment registers it: that takes about as
// long as one copy, so it does not pay for a single one. The segment stays registered until it is unmapped. False: the
// memory is in no segment, this is its first use, or the driver refused it. The GPU's context must be current.
bool is_registered(const std::shared_ptr<Gpu>& gpu, const void* data, size_t bytes);

}  // namespace torch_remote::worker::cuda
