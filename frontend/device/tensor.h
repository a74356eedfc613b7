#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>

#include <cstdint>
#include <typeinfo>

// Tensors of the device `remote`: stock tensors but for two small things. The storage knows its buffer on the worker;
// the tensor remembers which view it is in the current trace, so that a trace holds each view's sizes once.
namespace torch_remote::frontend {

// Where a storage or a tensor stands in the trace that is being recorded; stale unless `epoch` is the recorder's.
struct TraceSlot {
  uint32_t epoch = 0;
  uint32_t number = 0;
};

// No bytes on the client. The data pointer is a unique token in memory that nobody can read: a stray dereference
// faults, comparing pointers works.
class RemoteStorage final : public c10::StorageImpl {
 public:
  static constexpr uint64_t kLost = ~uint64_t{0};

  RemoteStorage(c10::SymInt nbytes, at::DataPtr data, c10::Allocator* allocator, bool resizable);
  ~RemoteStorage() override;
  void release_resources() override;

  // Guarded by the device's recorder.
  uint64_t id = 0;       // the worker's buffer; 0: none yet; kLost: its contents went with a worker
  uint32_t session = 0;  // of the recorder, when `id` was given
  TraceSlot buffer;      // ordinal in the current trace
  TraceSlot stock_view;  // of `stock_impl`, a TensorImpl that is not ours (made by `param.data = ...`)
  const c10::TensorImpl* stock_impl = nullptr;

 private:
  void forget() noexcept;

  const void* token_ = nullptr;
};

// Called by a storage that was recorded or uploaded and goes away, from any thread; the recorder's. Null until there is
// one.
extern void (*storage_died)(RemoteStorage* storage) noexcept;

class RemoteTensorImpl final : public c10::TensorImpl {
 public:
  using TensorImpl::TensorImpl;

  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(const c10::VariableVersion& version_counter,
                                                         bool allow_tensor_metadata_change) const override;
  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(c10::VariableVersion&& version_counter,
                                                         bool allow_tensor_metadata_change) const override;
  void shallow_copy_from(const c10::intrusive_ptr<TensorImpl>& impl) override;

  mutable TraceSlot view;  // guarded by the device's recorder

 private:
  template <typename Version>
  c10::intrusive_ptr<TensorImpl> copy(Version&& version_counter, bool allow_tensor_metadata_change) const;
};

inline bool is_remote(const at::TensorBase& tensor) { return tensor.device().type() == c10::DeviceType::PrivateUse1; }

// The live storage whose token this is, for a stock StorageImpl over it (torch makes one with at::from_blob when it
// pickles a storage). Raises if there is none.
RemoteStorage* storage_of_token(const void* token);

inline RemoteStorage* storage_of(const c10::Storage& storage) {
  c10::StorageImpl* impl = storage.unsafeGetStorageImpl();
  if (typeid(*impl) != typeid(RemoteStorage)) return storage_of_token(impl->data());
  return static_cast<RemoteStorage*>(impl);
}

inline RemoteStorage* storage_of(const at::TensorBase& tensor) {
  return storage_of(tensor.unsafeGetTensorImpl()->unsafe_storage());
}

// The slot that remembers this tensor's view.
inline TraceSlot& view_slot(const c10::TensorImpl* impl, RemoteStorage* storage) {
  if (typeid(*impl) == typeid(RemoteTensorImpl)) return static_cast<const RemoteTensorImpl*>(impl)->view;
  if (storage->stock_impl != impl) {
    storage->stock_impl = impl;
    storage->stock_view = {};
  }
  return storage->stock_view;
}

// A storage of bytes that nobody has written, for `make_tensor` and the like.
c10::Storage new_storage(int64_t nbytes, c10::DeviceIndex device);

// Raises for more dims than a trace can hold: where a tensor gets its sizes, so that the error is told there.
void check_rank(c10::IntArrayRef sizes);

// A new, undefined tensor with a storage of its own that just holds it. Sizes and strides in elements.
at::Tensor make_tensor(c10::IntArrayRef sizes, c10::IntArrayRef strides, c10::ScalarType dtype,
                       c10::DeviceIndex device);
at::Tensor make_contiguous_tensor(c10::IntArrayRef sizes, c10::ScalarType dtype, c10::DeviceIndex device);
// A tensor on a storage that is there.
at::Tensor tensor_on(c10::Storage storage, c10::ScalarType dtype, c10::IntArrayRef sizes, c10::IntArrayRef strides,
                     int64_t offset);
// Another view of the same storage.
at::Tensor make_view(const at::Tensor& base, c10::IntArrayRef sizes, c10::IntArrayRef strides, int64_t offset);
at::Tensor make_view(const at::Tensor& base, c10::Storage storage, caffe2::TypeMeta dtype, c10::IntArrayRef sizes,
                     c10::IntArrayRef strides, int64_t offset);

// The unique token that stands for a storage's memory.
at::DataPtr make_token(c10::DeviceIndex device);

void register_storage();

}  // namespace torch_remote::frontend
