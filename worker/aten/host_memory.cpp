#include "worker/aten/host_memory.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/StorageImpl.h>

#include <atomic>
#include <cstring>

namespace torch_remote::worker::aten {
namespace {

constexpr uint8_t kPriority = 100;

// Lives as long as the process: torch keeps the pointer.
class HostAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t nbytes) override {
    const tr_host* host = host_.load(std::memory_order_acquire);
    if (!host) return c10::GetDefaultCPUAllocator()->allocate(nbytes);
    const tr_buffer buffer = aten::allocate(*host, nbytes);
    return {buffer.data, buffer.owner, buffer.release, c10::Device(c10::DeviceType::CPU)};
  }
  void copy_data(void* destination, const void* source, std::size_t count) const override {
    std::memcpy(destination, source, count);
  }
  void set_host(const tr_host* host) { host_.store(host, std::memory_order_release); }

 private:
  std::atomic<const tr_host*> host_{nullptr};
};

HostAllocator& host_allocator() {
  static auto* allocator = new HostAllocator;
  return *allocator;
}

}  // namespace

void use_host_memory(const tr_host* host) {
  host_allocator().set_host(host);
  c10::SetCPUAllocator(&host_allocator(), kPriority);
}

void leave_host_memory() { host_allocator().set_host(nullptr); }

tr_buffer take_storage(c10::Storage storage) {
  const uint64_t nbytes = storage.nbytes();
  c10::StorageImpl* owner = storage.unsafeReleaseStorageImpl();
  return {owner->mutable_data(), nbytes, owner,
          [](void* impl) { c10::intrusive_ptr<c10::StorageImpl>::reclaim(static_cast<c10::StorageImpl*>(impl)); }};
}

tr_buffer allocate(const tr_host& host, uint64_t nbytes) {
  tr_buffer buffer{};
  TORCH_CHECK_WITH(OutOfMemoryError, host.allocate(host.context, nbytes, &buffer) == 0,
                   "remote: the worker has no memory left; tried to allocate ", nbytes, " bytes");
  return buffer;
}

}  // namespace torch_remote::worker::aten
