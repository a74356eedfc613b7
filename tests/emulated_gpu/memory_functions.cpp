#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "tests/emulated_gpu/emulator/memory.h"
#include "tests/emulated_gpu/machine.h"

// Allocation, copies and fills.
namespace torch_remote::worker::cuda::emulated {
namespace {

// The bytes of memory that was never written.
constexpr uint8_t kFresh = 0xFF;
constexpr size_t kPage = 4096;

// The memory that contains the address. It may be another device's, if access was enabled.
emulator::DeviceMemory* owner(Call& call, DevicePointer address) {
  return &call.machine->find(address, 0)->gpu->device->memory();
}

Result result_of(const Status& status) { return status.ok() ? Result::kSuccess : Result::kIllegalAddress; }

Result mem_get_info(size_t* unused, size_t* total) {
  Call call("cuMemGetInfo");
  if (!call.ready()) return call.error;
  *total = call.machine->options.memory;
  *unused = *total - call.gpu->used;
  return Result::kSuccess;
}

Result allocate(Call& call, size_t bytes, std::shared_ptr<PoolState> pool, DevicePointer* address) {
  if (bytes == 0) return Result::kInvalidValue;
  Machine& machine = *call.machine;
  Gpu& gpu = *call.gpu;
  if (count_down(machine.fail_allocation)) return Result::kOutOfMemory;
  if (bytes > machine.options.memory - gpu.used) return Result::kOutOfMemory;
  emulator::DeviceMemory& memory = gpu.device->memory();
  const auto file = pool ? nullptr : SharedFile::make(emulator::DeviceMemory::file_bytes(bytes));
  void* made = nullptr;
  const Status status = file   ? memory.map(file->descriptor, bytes, /*fresh=*/true, &made)
                        : pool ? memory.allocate(bytes, &made, "", /*aligned=*/true)
                               : Status::internal("no file");
  if (!status.ok()) return Result::kOutOfMemory;
  gpu.used += bytes;
  if (pool) pool->used += bytes;
  *address = reinterpret_cast<uint64_t>(made) | gpu.tag;
  machine.allocations[*address] = {&gpu, bytes, std::move(pool), false, file};
  return Result::kSuccess;
}

Result mem_alloc(DevicePointer* address, size_t bytes) {
  Call call("cuMemAlloc");
  if (!call.ready() || !call.may_synchronize()) return call.error;
  return allocate(call, bytes, nullptr, address);
}

bool is_idle(const Machine& machine, const Gpu* gpu) {
  return std::ranges::all_of(machine.streams.all(),
                             [&](const auto& entry) { return entry.second->gpu != gpu || entry.second->idle(); });
}

// Waits for all earlier work of the context.
Result mem_free(DevicePointer address) {
  Call call("cuMemFree");
  if (address == 0) return Result::kSuccess;
  if (!call.ready() || !call.may_synchronize()) return call.error;
  const auto found = call.machine->allocations.find(address);
  if (found == call.machine->allocations.end() || found->second.gpu != call.gpu || found->second.freeing ||
      found->second.is_imported) {
    return Result::kInvalidValue;
  }
  if (!has_no_other_user(found->second)) {  // In the real driver this is undefined behavior.
    call.machine->findings.emplace_back("cuMemFree: another process has this memory open");
    return Result::kInvalidValue;
  }
  found->second.freeing = true;
  call.wait([&] { return is_idle(*call.machine, call.gpu); });
  call.machine->release(address);
  return Result::kSuccess;
}

Result mem_host_alloc(void** address, size_t bytes, unsigned flags) {
  Call call("cuMemHostAlloc");
  if (!call.ready() || !call.may_synchronize()) return call.error;
  if (bytes == 0 || flags > 7) return Result::kInvalidValue;
  void* made = std::aligned_alloc(kPage, (bytes + kPage - 1) / kPage * kPage);
  if (made == nullptr) return Result::kOutOfMemory;
  std::memset(made, kFresh, bytes);
  call.machine->pinned[static_cast<std::byte*>(made)] = bytes;
  *address = made;
  return Result::kSuccess;
}

Result mem_free_host(void* address) {
  Call call("cuMemFreeHost");
  if (!call.ready() || !call.may_synchronize()) return call.error;
  if (!call.machine->pinned.contains(static_cast<std::byte*>(address))) return Result::kInvalidValue;
  call.wait([&] { return is_idle(*call.machine, call.gpu); });
  call.machine->pinned.erase(static_cast<std::byte*>(address));
  std::free(address);
  return Result::kSuccess;
}

// As in the real driver, no byte may be registered twice.
Result mem_host_register(void* address, size_t bytes, unsigned flags) {
  Call call("cuMemHostRegister");
  if (!call.ready() || !call.may_synchronize()) return call.error;
  if (address == nullptr || bytes == 0 || (flags & ~(kHostRegisterPortable | kHostRegisterReadOnly)) != 0)
    return Result::kInvalidValue;
  const auto* const begin = static_cast<const std::byte*>(address);
  for (const auto* const known : {&call.machine->pinned, &call.machine->registered}) {
    for (const auto& [other, size] : *known) {
      if (begin < other + size && other < begin + bytes) return Result::kHostMemoryAlreadyRegistered;
    }
  }
  call.machine->registered[begin] = bytes;
  return Result::kSuccess;
}

Result mem_host_unregister(void* address) {
  Call call("cuMemHostUnregister");
  if (!call.ready() || !call.may_synchronize()) return call.error;
  const bool erased = call.machine->registered.erase(static_cast<const std::byte*>(address)) != 0;
  return erased ? Result::kSuccess : Result::kHostMemoryNotRegistered;
}

// --- pools

Result mem_pool_create(MemoryPool* pool, const MemoryPoolProperties* properties) {
  Call call("cuMemPoolCreate");
  if (!call.is_up()) return call.error;
  if (!call.machine->options.memory_pools) return Result::kNotSupported;
  const MemoryPoolProperties& p = *properties;
  const bool good = p.allocation_type == 1 && p.handle_types == 0 && p.location_type == 1 && p.security == nullptr &&
                    p.usage == 0 && std::ranges::all_of(p.reserved, [](unsigned char byte) { return byte == 0; });
  if (!good) return Result::kInvalidValue;
  if (p.location < 0 || static_cast<size_t>(p.location) >= call.machine->gpus.size()) return Result::kInvalidDevice;
  auto made = std::make_shared<PoolState>();
  made->gpu = call.machine->gpus[p.location].get();
  *pool = call.machine->pools.add(std::move(made));
  return Result::kSuccess;
}

// The pool's memory is released when all allocations are freed.
Result mem_pool_destroy(MemoryPool pool) {
  Call call("cuMemPoolDestroy");
  if (!call.is_up()) return call.error;
  return call.machine->pools.take(pool) != nullptr ? Result::kSuccess : Result::kInvalidValue;
}

std::shared_ptr<PoolState> find_pool(Call& call, MemoryPool pool) {
  if (!call.is_up()) return nullptr;
  std::shared_ptr<PoolState> found = call.machine->pools.find(pool);
  if (found == nullptr) call.error = Result::kInvalidValue;
  return found;
}

Result mem_pool_set_attribute(MemoryPool pool, PoolAttribute attribute, void* value) {
  Call call("cuMemPoolSetAttribute");
  const auto found = find_pool(call, pool);
  if (found == nullptr) return call.error;
  if (attribute != PoolAttribute::kReleaseThreshold) return Result::kInvalidValue;
  found->threshold = *static_cast<uint64_t*>(value);
  return Result::kSuccess;
}

Result mem_pool_get_attribute(MemoryPool pool, PoolAttribute attribute, void* value) {
  Call call("cuMemPoolGetAttribute");
  const auto found = find_pool(call, pool);
  if (found == nullptr) return call.error;
  switch (attribute) {
    case PoolAttribute::kReleaseThreshold:
      *static_cast<uint64_t*>(value) = found->threshold;
      return Result::kSuccess;
    case PoolAttribute::kReserved:  // unused memory is never reserved
    case PoolAttribute::kUsed:
      *static_cast<uint64_t*>(value) = found->used;
      return Result::kSuccess;
  }
  return Result::kInvalidValue;
}

Result mem_pool_trim_to(MemoryPool pool, size_t) {
  Call call("cuMemPoolTrimTo");
  return find_pool(call, pool) != nullptr ? Result::kSuccess : call.error;
}

// Memory is allocated at once, but the caller may use it only after the allocation in stream order. It is overwritten
// at that point, so that earlier use gives wrong numbers.
Result mem_alloc_from_pool_async(DevicePointer* address, size_t bytes, MemoryPool pool, Stream handle) {
  Call call("cuMemAllocFromPoolAsync");
  if (!call.ready()) return call.error;
  StreamState* stream = call.stream(handle);
  if (stream == nullptr) return call.error;
  if (stream->capture) return call.refuse(*stream->capture);
  auto found = find_pool(call, pool);
  if (found == nullptr) return call.error;
  if (found->gpu != call.gpu) return Result::kInvalidValue;
  if (Result result = allocate(call, bytes, std::move(found), address); result != Result::kSuccess) return result;
  // NOLINTNEXTLINE(performance-no-int-to-ptr): the driver's addresses are numbers
  void* const memory = reinterpret_cast<void*>(*address & ~call.gpu->tag);
  return call.submit(*stream, {NodeType::kMemset,
                               [gpu = call.gpu, memory, bytes] {
                                 emulator::DeviceMemory& device = gpu->device->memory();
                                 const Status status = device.fill(memory, kFresh, bytes);
                                 if (status.ok()) device.mark(memory, bytes, emulator::kUninitialized);
                                 return result_of(status);
                               },
                               nullptr});
}

Result mem_free_async(DevicePointer address, Stream handle) {
  Call call("cuMemFreeAsync");
  if (!call.ready()) return call.error;
  StreamState* stream = call.stream(handle);
  if (stream == nullptr) return call.error;
  if (stream->capture) return call.refuse(*stream->capture);
  const auto found = call.machine->allocations.find(address);
  if (found == call.machine->allocations.end() || found->second.gpu != call.gpu || found->second.freeing ||
      found->second.pool == nullptr) {
    return Result::kInvalidValue;
  }
  found->second.freeing = true;
  return call.submit(*stream, {NodeType::kEmpty,
                               [machine = call.machine, address] {
                                 const std::lock_guard lock(machine->mutex);
                                 machine->release(address);
                                 return Result::kSuccess;
                               },
                               nullptr});
}

// --- copies

// The real driver may read pageable memory before the call returns or later. Here it reads it later.
Result memcpy_htod_async(DevicePointer to, const void* from, size_t bytes, Stream handle) {
  Call call("cuMemcpyHtoDAsync");
  if (!call.ready()) return call.error;
  StreamState* stream = call.stream(handle);
  if (stream == nullptr) return call.error;
  if (bytes == 0) return Result::kSuccess;
  void* const target = call.memory(to, bytes);
  if (target == nullptr) return call.error;
  emulator::DeviceMemory* memory = owner(call, to);
  if (stream->capture && !call.machine->is_pinned(from, bytes)) return call.refuse(*stream->capture);
  return call.submit(*stream,
                     {NodeType::kMemcpy, [=] { return result_of(memory->write(target, from, bytes)); }, nullptr});
}

// Pageable memory is written later here, as in memcpy_htod_async.
Result memcpy_dtoh_async(void* to, DevicePointer from, size_t bytes, Stream handle) {
  Call call("cuMemcpyDtoHAsync");
  if (!call.ready()) return call.error;
  StreamState* stream = call.stream(handle);
  if (stream == nullptr) return call.error;
  if (bytes == 0) return Result::kSuccess;
  const void* const source = call.memory(from, bytes);
  if (source == nullptr) return call.error;
  if (stream->capture && !call.machine->is_pinned(to, bytes)) return call.refuse(*stream->capture);
  emulator::DeviceMemory* memory = owner(call, from);
  return call.submit(*stream, {NodeType::kMemcpy, [=] { return result_of(memory->read(to, source, bytes)); }, nullptr});
}

Result memcpy_dtod_async(DevicePointer to, DevicePointer from, size_t bytes, Stream handle) {
  Call call("cuMemcpyDtoDAsync");
  if (!call.ready()) return call.error;
  StreamState* stream = call.stream(handle);
  if (stream == nullptr) return call.error;
  if (bytes == 0) return Result::kSuccess;
  void* const target = call.memory(to, bytes);
  const void* const source = target != nullptr ? call.memory(from, bytes) : nullptr;
  if (source == nullptr) return call.error;
  if (call.machine->find(to, bytes)->gpu != call.gpu || call.machine->find(from, bytes)->gpu != call.gpu) {
    return Result::kInvalidValue;  // The real driver accepts this. We require memcpy_peer_async, which is explicit.
  }
  emulator::DeviceMemory* memory = &call.gpu->device->memory();
  return call.submit(*stream,
                     {NodeType::kMemcpy, [=] { return result_of(memory->copy(target, source, bytes)); }, nullptr});
}

Result memcpy_peer_async(DevicePointer to, Context to_context, DevicePointer from, Context from_context, size_t bytes,
                         Stream handle) {
  Call call("cuMemcpyPeerAsync");
  if (!call.ready()) return call.error;
  StreamState* stream = call.stream(handle);
  if (stream == nullptr) return call.error;
  const auto to_gpu = call.machine->contexts.find(to_context), from_gpu = call.machine->contexts.find(from_context);
  if (to_gpu == nullptr || from_gpu == nullptr) return Result::kInvalidContext;
  if (to_gpu.get() != call.gpu && from_gpu.get() != call.gpu) return Result::kInvalidContext;
  if (bytes == 0) return Result::kSuccess;
  void* const target = call.memory(to, bytes, to_gpu.get());
  const void* const source = target != nullptr ? call.memory(from, bytes, from_gpu.get()) : nullptr;
  if (source == nullptr) return call.error;
  return call.submit(*stream, {NodeType::kMemcpy,
                               [=, a = from_gpu.get(), b = to_gpu.get()] {
                                 std::vector<std::byte> between(bytes);
                                 Status status = a->device->memory().read(between.data(), source, bytes);
                                 if (status.ok()) status = b->device->memory().write(target, between.data(), bytes);
                                 return result_of(status);
                               },
                               nullptr});
}

Result memset_d8_async(DevicePointer to, unsigned char value, size_t count, Stream handle) {
  Call call("cuMemsetD8Async");
  if (!call.ready()) return call.error;
  StreamState* stream = call.stream(handle);
  if (stream == nullptr) return call.error;
  if (count == 0) return Result::kSuccess;
  void* const target = call.memory(to, count);
  if (target == nullptr) return call.error;
  emulator::DeviceMemory* memory = owner(call, to);
  return call.submit(*stream,
                     {NodeType::kMemset, [=] { return result_of(memory->fill(target, value, count)); }, nullptr});
}

Result memset_d32_async(DevicePointer to, unsigned value, size_t count, Stream handle) {
  Call call("cuMemsetD32Async");
  if (!call.ready()) return call.error;
  StreamState* stream = call.stream(handle);
  if (stream == nullptr) return call.error;
  if (count == 0) return Result::kSuccess;
  if (to % sizeof(value) != 0 || count > SIZE_MAX / sizeof(value)) return Result::kInvalidValue;
  void* const target = call.memory(to, count * sizeof(value));
  if (target == nullptr) return call.error;
  emulator::DeviceMemory* memory = owner(call, to);
  return call.submit(*stream, {NodeType::kMemset,
                               [=] {
                                 const std::vector<unsigned> values(count, value);
                                 return result_of(memory->write(target, values.data(), count * sizeof(value)));
                               },
                               nullptr});
}

}  // namespace

void add_memory_functions(Driver& driver) {
  driver.mem_get_info = mem_get_info;
  driver.mem_alloc = mem_alloc;
  driver.mem_free = mem_free;
  driver.mem_host_alloc = mem_host_alloc;
  driver.mem_free_host = mem_free_host;
  driver.mem_host_register = mem_host_register;
  driver.mem_host_unregister = mem_host_unregister;
  driver.mem_pool_create = mem_pool_create;
  driver.mem_pool_destroy = mem_pool_destroy;
  driver.mem_pool_set_attribute = mem_pool_set_attribute;
  driver.mem_pool_get_attribute = mem_pool_get_attribute;
  driver.mem_pool_trim_to = mem_pool_trim_to;
  driver.mem_alloc_from_pool_async = mem_alloc_from_pool_async;
  driver.mem_free_async = mem_free_async;
  driver.memcpy_htod_async = memcpy_htod_async;
  driver.memcpy_dtoh_async = memcpy_dtoh_async;
  driver.memcpy_dtod_async = memcpy_dtod_async;
  driver.memcpy_peer_async = memcpy_peer_async;
  driver.memset_d8_async = memset_d8_async;
  driver.memset_d32_async = memset_d32_async;
}

}  // namespace torch_remote::worker::cuda::emulated
