#include "worker/targets/cuda/device/registered_memory.h"

#include "remote/transport/mapped_regions.h"

namespace torch_remote::worker::cuda {
namespace {

constexpr uint64_t kRegisteringUse = 2;

// Null: the driver refused.
std::shared_ptr<void> register_region(const std::shared_ptr<Gpu>& gpu, const remote::MappedRegion& region) {
  const unsigned flags = kHostRegisterPortable | (region.is_writable ? 0 : kHostRegisterReadOnly);
  const Result result = gpu->driver().mem_host_register(region.bytes.data(), region.bytes.size(), flags);
  if (result != Result::kSuccess) return nullptr;
  return {region.bytes.data(), [gpu](void* data) {
            if (gpu->is_lost()) return;  // The context's end releases the memory.
            const ContextGuard current(*gpu);
            (void)gpu->driver().mem_host_unregister(data);
          }};
}

}  // namespace

bool is_registered(const std::shared_ptr<Gpu>& gpu, const void* data, size_t bytes) {
  bool registered = false;
  remote::use_mapped_region(data, bytes, [&](remote::MappedRegion& region) {
    if (++region.uses == kRegisteringUse) region.registration = register_region(gpu, region);
    registered = region.registration != nullptr;
  });
  return registered;
}

}  // namespace torch_remote::worker::cuda
