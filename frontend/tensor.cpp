#include "frontend/tensor.h"

#include <ATen/EmptyTensor.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <sys/mman.h>

#include <atomic>

#include "frontend/recorder.h"

namespace torch_remote::frontend {
namespace {

// Tokens are 64 bytes apart, as allocations would be. 16 TiB of address space, none of it memory: 2.7e11 storages
// before the first token comes again.
constexpr uint64_t kTokenSpace = uint64_t{1} << 44;
constexpr uint64_t kSmallestTokenSpace = uint64_t{1} << 30;
constexpr uint64_t kTokenStride = 64;

struct TokenSpace {
  char* base;
  uint64_t size;
};

const TokenSpace& token_space() {
  static const TokenSpace space = [] {
    for (uint64_t size = kTokenSpace; size >= kSmallestTokenSpace; size >>= 1) {
      void* memory = mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (memory != MAP_FAILED) return TokenSpace{static_cast<char*>(memory), size};
    }
    TORCH_CHECK(false,
                "remote: cannot reserve address space for tensor tokens (mmap failed); raise the limit `ulimit -v`");
  }();
  return space;
}

std::atomic<uint64_t> next_token{0};

c10::intrusive_ptr<c10::StorageImpl> make_remote_storage(c10::StorageImpl::use_byte_size_t, c10::SymInt nbytes,
                                                         c10::DataPtr data, c10::Allocator* allocator, bool resizable) {
  if (data.get() == nullptr) data = make_token(data.device().has_index() ? data.device().index() : 0);
  return c10::make_intrusive<RemoteStorage>(std::move(nbytes), std::move(data), allocator, resizable);
}

const c10::DispatchKeySet kKeySet(c10::DispatchKey::PrivateUse1);

c10::Storage new_storage(int64_t nbytes, c10::DeviceIndex device) {
  return c10::Storage(c10::make_intrusive<RemoteStorage>(c10::SymInt(nbytes), make_token(device),
                                                         c10::GetAllocator(c10::DeviceType::PrivateUse1), true));
}

}  // namespace

at::DataPtr make_token(c10::DeviceIndex device) {
  const TokenSpace& space = token_space();
  const uint64_t offset = next_token.fetch_add(kTokenStride, std::memory_order_relaxed) & (space.size - 1);
  return at::DataPtr(space.base + offset, c10::Device(c10::DeviceType::PrivateUse1, device));
}

RemoteStorage::RemoteStorage(c10::SymInt nbytes, at::DataPtr data, c10::Allocator* allocator, bool resizable)
    : StorageImpl(use_byte_size_t(), std::move(nbytes), std::move(data), allocator, resizable) {}

RemoteStorage::~RemoteStorage() { forget(); }

void RemoteStorage::release_resources() {
  forget();
  StorageImpl::release_resources();
}

void RemoteStorage::forget() noexcept {
  // A storage that was never recorded and never uploaded costs nothing to forget.
  if (id != 0 || buffer.epoch != 0) Recorder::get(device().index()).storage_died(this);
}

template <typename Version>
c10::intrusive_ptr<c10::TensorImpl> RemoteTensorImpl::copy(Version&& version_counter,
                                                           bool allow_tensor_metadata_change) const {
  // Python subclasses and modes get to see a detach: the base class knows how.
  if (c10::impl::TorchDispatchModeTLS::stack_len() > 0 || key_set_.has(c10::DispatchKey::Python)) {
    return TensorImpl::shallow_copy_and_detach(std::forward<Version>(version_counter), allow_tensor_metadata_change);
  }
  auto impl = c10::make_intrusive<RemoteTensorImpl>(c10::Storage(storage()), key_set_, data_type_);
  copy_tensor_metadata(this, impl.get(), std::forward<Version>(version_counter), allow_tensor_metadata_change);
  impl->view = view;
  return impl;
}

c10::intrusive_ptr<c10::TensorImpl> RemoteTensorImpl::shallow_copy_and_detach(
    const c10::VariableVersion& version_counter, bool allow_tensor_metadata_change) const {
  return copy(version_counter, allow_tensor_metadata_change);
}

c10::intrusive_ptr<c10::TensorImpl> RemoteTensorImpl::shallow_copy_and_detach(c10::VariableVersion&& version_counter,
                                                                              bool allow_tensor_metadata_change) const {
  return copy(std::move(version_counter), allow_tensor_metadata_change);
}

void RemoteTensorImpl::shallow_copy_from(const c10::intrusive_ptr<TensorImpl>& impl) {
  TensorImpl::shallow_copy_from(impl);
  view = {};
}

at::Tensor make_tensor(c10::IntArrayRef sizes, c10::IntArrayRef strides, c10::ScalarType dtype,
                       c10::DeviceIndex device) {
  const auto meta = c10::scalarTypeToTypeMeta(dtype);
  const int64_t nbytes = static_cast<int64_t>(at::detail::computeStorageNbytes(sizes, strides, meta.itemsize()));
  auto impl = c10::make_intrusive<RemoteTensorImpl>(new_storage(nbytes, device), kKeySet, meta);
  impl->set_sizes_and_strides(sizes, strides);
  return at::Tensor(std::move(impl));
}

at::Tensor make_contiguous_tensor(c10::IntArrayRef sizes, c10::ScalarType dtype, c10::DeviceIndex device) {
  const auto meta = c10::scalarTypeToTypeMeta(dtype);
  const int64_t nbytes = static_cast<int64_t>(at::detail::computeStorageNbytesContiguous(sizes, meta.itemsize()));
  auto impl = c10::make_intrusive<RemoteTensorImpl>(new_storage(nbytes, device), kKeySet, meta);
  if (sizes.size() != 1 || sizes[0] != 0) impl->set_sizes_contiguous(sizes);
  return at::Tensor(std::move(impl));
}

at::Tensor make_view(const at::Tensor& base, c10::Storage storage, caffe2::TypeMeta dtype, c10::IntArrayRef sizes,
                     c10::IntArrayRef strides, int64_t offset) {
  auto impl = c10::make_intrusive<RemoteTensorImpl>(c10::TensorImpl::VIEW, std::move(storage), base.key_set(), dtype);
  impl->set_sizes_and_strides(sizes, strides, offset);
  return at::Tensor(std::move(impl));
}

at::Tensor make_view(const at::Tensor& base, c10::IntArrayRef sizes, c10::IntArrayRef strides, int64_t offset) {
  return make_view(base, c10::Storage(base.storage()), base.dtype(), sizes, strides, offset);
}

void register_storage() { c10::SetStorageImplCreate(c10::DeviceType::PrivateUse1, &make_remote_storage); }

}  // namespace torch_remote::frontend
