#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "worker/device/memory.h"
#include "worker/device/peer_memory.h"
#include "worker/targets/cuda/device/gpu.h"

namespace torch_remote::worker::cuda {

// Memory of cuMemAlloc (a pool's cannot be opened so simply), found by CUDA's handles for other processes. Up to
// `most_kept` bytes stay to be used again, as opening them takes long; they are still there when the session ends. All
// of it counts against `memory`'s limit. `queued` is told of work on the GPU's stream.
std::unique_ptr<PeerMemory> make_peer_memory(std::shared_ptr<Gpu> gpu, CachingAllocator& memory, uint64_t most_kept,
                                             std::function<void()> queued);

}  // namespace torch_remote::worker::cuda
