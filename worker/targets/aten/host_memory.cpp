#include "worker/targets/aten/host_memory.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/StorageImpl.h>

#include <array>
#include <atomic>
#include <cstring>
#include <mutex>
#include <optional>
#include <unordered_map>

namespace torch_remote::worker::aten {
namespace {

constexpr uint8_t kPriority = 100;

// Maps the address of a block to the buffer that must be released. The record does not stand next to the block, because
// a client may read that memory. It is not the DataPtr's context either, because the context must be the block itself
// (oneDNN's scratch memory comes from raw_allocate). The map is split into parts, each with its own lock, so that
// threads rarely contend.
class Owners {
 public:
  void add(const tr_buffer& buffer) {
    Part& part = part_of(buffer.data);
    std::lock_guard lock(part.mutex);
    part.buffers.emplace(buffer.data, buffer);
  }
  // Returns nothing if the address is unknown.
  std::optional<tr_buffer> take(void* data) {
    Part& part = part_of(data);
    std::lock_guard lock(part.mutex);
    const auto found = part.buffers.find(data);
    if (found == part.buffers.end()) return std::nullopt;
    const tr_buffer buffer = found->second;
    part.buffers.erase(found);
    return buffer;
  }

 private:
  struct alignas(64) Part {
    std::mutex mutex;
    std::unordered_map<void*, tr_buffer> buffers;
  };
  Part& part_of(void* data) {
    const auto address = reinterpret_cast<uintptr_t>(data);
    return parts_[(address >> 6 ^ address >> 12) % parts_.size()];
  }

  std::array<Part, 16> parts_;
};

// Never destroyed: memory may be released during exit.
Owners& owners() {
  static auto* instance = new Owners;
  return *instance;
}

// Never destroyed: torch keeps the pointer.
class HostAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t nbytes) override {
    const c10::Device cpu(c10::DeviceType::CPU);
    const tr_host* host = host_.load(std::memory_order_acquire);
    if (!host) return c10::GetDefaultCPUAllocator()->allocate(nbytes);
    void* const data = allocate_memory(*host, nbytes);
    return {data, data, free_memory, cpu};
  }
  c10::DeleterFnPtr raw_deleter() const override { return free_memory; }
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

void* allocate_memory(const tr_host& host, uint64_t nbytes) {
  if (nbytes == 0) return nullptr;
  const tr_buffer buffer = allocate(host, nbytes);
  owners().add(buffer);
  return buffer.data;
}

void free_memory(void* data) {
  if (!data) return;  // 0 bytes
  const std::optional<tr_buffer> buffer = owners().take(data);
  // The block is torch's own, from a time without a host: callers without a DataPtr release all blocks the same way.
  if (!buffer) return c10::GetDefaultCPUAllocator()->raw_deallocate(data);
  buffer->release(buffer->owner);
}

void use_host_memory(const tr_host* host) {
  host_allocator().set_host(host);
  c10::SetCPUAllocator(&host_allocator(), kPriority);
}

void reset_host_memory() { host_allocator().set_host(nullptr); }

tr_buffer take_storage(c10::Storage storage) {
  const uint64_t nbytes = storage.nbytes();
  c10::StorageImpl* owner = storage.unsafeReleaseStorageImpl();
  return {owner->mutable_data(), nbytes, owner,
          [](void* impl) { c10::intrusive_ptr<c10::StorageImpl>::reclaim(static_cast<c10::StorageImpl*>(impl)); }};
}

tr_buffer allocate(const tr_host& host, uint64_t nbytes) {
  tr_buffer buffer{};
  TORCH_CHECK_WITH(OutOfMemoryError, host.allocate(host.context, nbytes, &buffer) == 0,
                   "remote: the worker is out of memory. It tried to allocate ", nbytes, " bytes");
  return buffer;
}

}  // namespace torch_remote::worker::aten
