#include "worker/aten/host_memory.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/StorageImpl.h>

#include <atomic>
#include <cstring>
#include <new>

namespace torch_remote::worker::aten {
namespace {

constexpr uint8_t kPriority = 100;

// Before each piece of memory: whom to give it back to. (Torch's raw_allocate wants a DataPtr whose context is its
// data.)
struct alignas(64) Prefix {
  void* owner;
  void (*release)(void* owner);
};

void give_back(void* data) {
  if (!data) return;  // 0 bytes
  const Prefix prefix = *(static_cast<Prefix*>(data) - 1);
  prefix.release(prefix.owner);
}

// Lives as long as the process: torch keeps the pointer.
class HostAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t nbytes) override {
    const tr_host* host = host_.load(std::memory_order_acquire);
    if (!host) return c10::GetDefaultCPUAllocator()->allocate(nbytes);
    if (nbytes == 0) return {nullptr, c10::Device(c10::DeviceType::CPU)};
    TORCH_CHECK_WITH(OutOfMemoryError, nbytes <= SIZE_MAX - sizeof(Prefix), "remote: a tensor of ", nbytes, " bytes");
    const tr_buffer buffer = aten::allocate(*host, nbytes + sizeof(Prefix));
    auto* prefix = new (buffer.data) Prefix{buffer.owner, buffer.release};
    return {prefix + 1, prefix + 1, give_back, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return give_back; }
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
