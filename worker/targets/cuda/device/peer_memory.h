#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "worker/device/memory.h"
#include "worker/device/peer_memory.h"
#include "worker/targets/cuda/device/gpu.h"

namespace torch_remote::worker::cuda {

// Memory of cuMemAlloc that other processes open by CUDA's IPC handles; memory of a pool cannot be exported as simply.
// Opening is slow, so up to `reuse_limit` bytes are reused until the session ends. All of it counts against `memory`'s
// limit. `queued` is called after work was queued on the GPU's stream.
std::unique_ptr<PeerMemory> make_peer_memory(std::shared_ptr<Gpu> gpu, CachingAllocator& memory, uint64_t reuse_limit,
                                             std::function<void()> queued);

}  // namespace torch_remote::worker::cuda
