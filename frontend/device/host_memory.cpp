#include "frontend/device/host_memory.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_to_copy_native.h>
#include <c10/core/CPUAllocator.h>
#include <sys/mman.h>
#include <torch/library.h>

#include <bit>
#include <memory>
#include <mutex>
#include <vector>

#include "frontend/device/tensor.h"

// Memory for large CPU tensors that are read from the device. Fresh memory costs a page fault every 4 KiB, which takes
// longer than the copy. So the memory of such a tensor is cached for the next tensor of its size. It is ordinary
// private memory: a forked child has a copy, and the kernel may reclaim its pages while it is cached.
namespace torch_remote::frontend {
namespace {

using at::Tensor;

constexpr size_t kLarge = size_t{1} << 20;             // minimum size in bytes
constexpr size_t kMaxCachedBytes = size_t{256} << 20;  // bytes in the cache
constexpr size_t kHugePage = size_t{2} << 20;

struct Mapping {
  std::byte* data = nullptr;
  size_t size = 0;
};

void unmap(const Mapping& mapping) {
  if (mapping.data) munmap(mapping.data, mapping.size);
}

// Returns a mapping without data if there is no memory.
Mapping map(size_t size) {
  const size_t alignment = size >= 2 * kHugePage ? kHugePage : 0;  // so that huge pages fit
  void* raw = mmap(nullptr, size + alignment, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (raw == MAP_FAILED) return {};
  auto* data = static_cast<std::byte*>(raw);
  if (!alignment) return {data, size};
  const size_t before = -reinterpret_cast<uintptr_t>(data) % alignment;
  if (before) munmap(data, before);
  if (before < alignment) munmap(data + before + size, alignment - before);
  madvise(data + before, size, MADV_HUGEPAGE);  // a hint; errors are ignored
  return {data + before, size};
}

// Rounds up to 4, 5, 6 or 7 times a power of two, so that close sizes share memory.
size_t rounded(size_t size) {
  const size_t step = std::bit_floor(size - 1) / 4;
  return (size + step - 1) / step * step;
}

// The cache of free mappings; lives as long as the process. All functions only try to lock, and do without the cache if
// that fails. In a forked child, a thread that does not exist there may hold the lock forever.
class CachedMappings {
 public:
  Mapping take(size_t size) {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    for (size_t i = lock ? all_.size() : 0; i-- > 0;) {
      if (all_[i].size != size) continue;
      const Mapping found = all_[i];
      all_.erase(all_.begin() + static_cast<ptrdiff_t>(i));
      bytes_ -= size;
      return found;
    }
    return {};
  }

  void clear() {
    std::vector<Mapping> all;
    {
      const std::unique_lock lock(mutex_, std::try_to_lock);
      if (!lock) return;
      all.swap(all_);
      bytes_ = 0;
    }
    for (const Mapping& mapping : all) unmap(mapping);
  }

  void put(const Mapping& mapping) {
    madvise(mapping.data, mapping.size, MADV_FREE);
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock || mapping.size > kMaxCachedBytes) return unmap(mapping);
    all_.push_back(mapping);
    bytes_ += mapping.size;
    while (bytes_ > kMaxCachedBytes) {
      bytes_ -= all_.front().size;
      unmap(all_.front());
      all_.erase(all_.begin());
    }
  }

 private:
  std::mutex mutex_;
  std::vector<Mapping> all_;  // oldest first
  size_t bytes_ = 0;
};

CachedMappings& cached_mappings() {
  static auto* const memory = new CachedMappings;
  return *memory;
}

void return_mapping(void* context) {
  const std::unique_ptr<Mapping> mapping(static_cast<Mapping*>(context));
  cached_mappings().put(*mapping);
}

// A dense CPU tensor with uninitialized contents.
Tensor empty_host(c10::IntArrayRef sizes, c10::IntArrayRef strides, c10::ScalarType dtype) {
  const auto meta = c10::scalarTypeToTypeMeta(dtype);
  const size_t nbytes = at::detail::computeStorageNbytes(sizes, strides, meta.itemsize());
  const size_t size = rounded(nbytes);
  Mapping mapping = cached_mappings().take(size);
  if (!mapping.data) mapping = map(size);
  if (!mapping.data) return at::detail::empty_strided_cpu(sizes, strides, dtype);  // raises torch's error
  auto context = std::make_unique<Mapping>(mapping);
  c10::DataPtr data(mapping.data, context.get(), return_mapping, c10::Device(c10::kCPU));
  (void)context.release();
  auto storage = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), nbytes, std::move(data),
                                                       c10::GetCPUAllocator(), /*resizable=*/true);
  Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(std::move(storage)),
                                                           c10::DispatchKeySet(c10::DispatchKey::CPU), meta);
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  return tensor;
}

// Torch's implementation, except for large device tensors that are copied to the CPU.
Tensor to_copy(const Tensor& self, std::optional<c10::ScalarType> dtype, std::optional<c10::Layout> layout,
               std::optional<c10::Device> device, std::optional<bool> pin_memory, bool non_blocking,
               std::optional<c10::MemoryFormat> format) {
  const bool to_host = device && device->is_cpu() && is_remote(self) && !pin_memory.value_or(false) && !non_blocking &&
                       layout.value_or(c10::kStrided) == c10::kStrided &&
                       format.value_or(c10::MemoryFormat::Preserve) == c10::MemoryFormat::Preserve;
  if (!to_host || self.unsafeGetTensorImpl()->has_symbolic_sizes_strides() || !self.is_non_overlapping_and_dense() ||
      static_cast<size_t>(self.numel()) * c10::elementSize(dtype.value_or(self.scalar_type())) < kLarge) {
    return at::native::_to_copy(self, dtype, layout, device, pin_memory, non_blocking, format);
  }
  Tensor result = empty_host(self.sizes(), self.strides(), dtype.value_or(self.scalar_type()));
  return result.copy_(self);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) { library.impl("_to_copy", &to_copy); }

}  // namespace

void release_host_memory() { cached_mappings().clear(); }

}  // namespace torch_remote::frontend
