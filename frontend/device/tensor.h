#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>

#include <cstdint>
#include <typeinfo>

// Tensors of the device `remote` are ordinary tensors with two additions. The storage knows its buffer on the worker.
// The tensor remembers which view of the current trace it is, so a trace holds each view's sizes once.
namespace torch_remote::frontend {

// Index of a storage or a tensor in a trace that is being recorded. Only valid while `epoch` equals the epoch of that
// trace (TraceEncoder). Aligned for a single load or store.
struct alignas(8) TraceSlot {
  uint32_t epoch = 0;
  uint32_t index = 0;
};

// A storage has no bytes on the client. Its data pointer is a unique token in unreadable address space: dereferencing
// it faults, and comparing pointers works.
class RemoteStorage final : public c10::StorageImpl {
 public:
  static constexpr uint64_t kLost = ~uint64_t{0};

  RemoteStorage(c10::SymInt nbytes, at::DataPtr data, c10::Allocator* allocator, bool resizable);
  ~RemoteStorage() override;
  void release_resources() override;

  // All members below are guarded by the lock of the device's traces (ThreadTraces).
  uint64_t id = 0;       // the worker's buffer; 0: none yet; kLost: its contents are lost
  uint32_t session = 0;  // the recorder's session when `id` was assigned
  TraceSlot buffer;      // index among the current trace's buffers
  // `param.data = ...` makes tensors of torch's own class c10::TensorImpl, which has no TraceSlot. The storage holds
  // the slot of the last one that was used (`stock_impl`).
  TraceSlot stock_view;
  const c10::TensorImpl* stock_impl = nullptr;

 private:
  void forget() noexcept;

  const void* token_ = nullptr;
};

// The recorder's callback for a storage that was recorded or uploaded and is destroyed. Called from any thread. Null
// until a recorder exists.
extern void (*on_storage_destroyed)(RemoteStorage* storage) noexcept;

class RemoteTensorImpl final : public c10::TensorImpl {
 public:
  using TensorImpl::TensorImpl;

  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(const c10::VariableVersion& version_counter,
                                                         bool allow_tensor_metadata_change) const override;
  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(c10::VariableVersion&& version_counter,
                                                         bool allow_tensor_metadata_change) const override;
  void shallow_copy_from(const c10::intrusive_ptr<TensorImpl>& impl) override;

  // Guarded by the lock of the device's traces. copy() reads it without this lock, while another thread may record a
  // call with the tensor. So this read, and the recorder's store, are atomic.
  mutable TraceSlot view;

 private:
  template <typename Version>
  c10::intrusive_ptr<TensorImpl> copy(Version&& version_counter, bool allow_tensor_metadata_change) const;
};

inline bool is_remote(const at::TensorBase& tensor) { return tensor.device().type() == c10::DeviceType::PrivateUse1; }

// The live storage that owns this token. Torch makes a stock StorageImpl over a token when it pickles a storage
// (at::from_blob). Raises if no storage owns it.
RemoteStorage* storage_of_token(const void* token);

inline RemoteStorage* storage_of(const c10::Storage& storage) {
  c10::StorageImpl* impl = storage.unsafeGetStorageImpl();
  if (typeid(*impl) != typeid(RemoteStorage)) return storage_of_token(impl->data());
  return static_cast<RemoteStorage*>(impl);
}

inline RemoteStorage* storage_of(const at::TensorBase& tensor) {
  return storage_of(tensor.unsafeGetTensorImpl()->unsafe_storage());
}

// The slot in which this tensor remembers its view. Requires the lock of the device's traces.
inline TraceSlot& view_slot(const c10::TensorImpl* impl, RemoteStorage* storage) {
  if (typeid(*impl) == typeid(RemoteTensorImpl)) return static_cast<const RemoteTensorImpl*>(impl)->view;
  if (storage->stock_impl != impl) {
    storage->stock_impl = impl;
    storage->stock_view = {};
  }
  return storage->stock_view;
}

// A storage of `nbytes` bytes with uninitialized contents, for `make_tensor` and similar functions.
c10::Storage new_storage(int64_t nbytes, c10::DeviceIndex device);

// Raises if there are more dims than a trace can hold. Called where a tensor gets its sizes, so the error appears
// there.
void check_rank(c10::IntArrayRef sizes);

// A new, uninitialized tensor with its own storage, which is just large enough. Sizes and strides are in elements.
at::Tensor make_tensor(c10::IntArrayRef sizes, c10::IntArrayRef strides, c10::ScalarType dtype,
                       c10::DeviceIndex device);
at::Tensor make_contiguous_tensor(c10::IntArrayRef sizes, c10::ScalarType dtype, c10::DeviceIndex device);
// A tensor on an existing storage. `offset` is in elements, here and below.
at::Tensor tensor_over_storage(c10::Storage storage, c10::ScalarType dtype, c10::IntArrayRef sizes,
                               c10::IntArrayRef strides, int64_t offset);
// Another view of the same storage.
at::Tensor make_view(const at::Tensor& base, c10::IntArrayRef sizes, c10::IntArrayRef strides, int64_t offset);
// The same with another dtype, over `storage`. Only the dispatch keys are those of `base`.
at::Tensor make_view(const at::Tensor& base, c10::Storage storage, caffe2::TypeMeta dtype, c10::IntArrayRef sizes,
                     c10::IntArrayRef strides, int64_t offset);

// A unique token that stands for a storage's memory. The RemoteStorage that is made with it frees the token.
at::DataPtr make_token(c10::DeviceIndex device);

// Makes torch create a RemoteStorage wherever it makes a storage of this device, as for torch.UntypedStorage.
void register_storage();

}  // namespace torch_remote::frontend
