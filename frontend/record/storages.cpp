#include "frontend/record/storages.h"

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>

#include <algorithm>
#include <cstring>

#include "frontend/record/recorder.h"
#include "ir/ops/op_table_generated.h"

namespace torch_remote::frontend {

using at::Tensor;
using c10::IntArrayRef;
using c10::IValue;

void resize_storage(const c10::Storage& holder, size_t nbytes) {
  RemoteStorage* storage = storage_of(holder);
  TORCH_CHECK(storage->resizable(), "Trying to resize storage that is not resizable");
  const c10::DeviceIndex device = storage->device().index();
  Recorder& recorder = Recorder::get(device);
  const size_t old = storage->nbytes();
  if (nbytes == old) return;
  if (!recorder.has_buffer(storage)) {
    storage->set_nbytes(nbytes);
    return;
  }
  // A new buffer with the same first bytes replaces the old one.
  const int64_t kept = static_cast<int64_t>(std::min(old, nbytes));
  Tensor target = make_contiguous_tensor({static_cast<int64_t>(nbytes)}, c10::ScalarType::Byte, device);
  auto* fresh = storage_of(target);
  if (kept > 0) {
    const Tensor from = make_view(target, c10::Storage(holder), target.dtype(), {kept}, {1}, 0);
    const Tensor to = make_view(target, {kept}, {1}, 0);
    const IValue args[] = {to, from, false};
    recorder.record(ir::op_desc(ir::ops::aten_copy_), args, {}, {}, std::nullopt);
  }
  recorder.move_buffer(fresh, storage);
  storage->set_nbytes(nbytes);
}

void upload_into(const Tensor& cpu, RemoteStorage* storage, c10::DeviceIndex device) {
  const Tensor packed = cpu.contiguous();
  Recorder::get(device).upload(storage, packed.nbytes(), [&](std::byte* destination) {
    std::memcpy(destination, packed.const_data_ptr(), packed.nbytes());
  });
}

Tensor upload_tensor(const Tensor& cpu, c10::DeviceIndex device) {
  Tensor tensor = make_contiguous_tensor(cpu.sizes(), cpu.scalar_type(), device);
  if (cpu.numel() != 0) upload_into(cpu, storage_of(tensor), device);
  return tensor;
}

Tensor tensor_of_file(const std::string& path, const remote::FileVersion& version, uint64_t offset, IntArrayRef sizes,
                      c10::ScalarType dtype, c10::DeviceIndex device) {
  Tensor tensor = make_contiguous_tensor(sizes, dtype, device);
  if (tensor.numel() != 0) {
    Recorder::get(device).read_file(storage_of(tensor), tensor.nbytes(), path, version, offset);
  }
  return tensor;
}

Tensor tensor_of_result(uint64_t id, uint64_t nbytes, IntArrayRef sizes, c10::ScalarType dtype,
                        c10::DeviceIndex device) {
  Tensor tensor = make_contiguous_tensor(sizes, dtype, device);
  TORCH_CHECK(tensor.nbytes() == nbytes, "remote: a result of ", tensor.nbytes(), " bytes came as ", nbytes);
  Recorder::get(device).take_result(storage_of(tensor), id);
  return tensor;
}

Tensor adopt_storage(const c10::Storage& storage, IntArrayRef sizes, IntArrayRef strides, c10::ScalarType dtype) {
  const auto meta = c10::scalarTypeToTypeMeta(dtype);
  storage.unsafeGetStorageImpl()->set_nbytes(at::detail::computeStorageNbytes(sizes, strides, meta.itemsize()));
  return tensor_over_storage(storage, dtype, sizes, strides, 0);
}

void fill_if_unwritten(const Tensor& tensor) {
  RemoteStorage* storage = storage_of(tensor);
  if (storage->id != 0 || Recorder::get(tensor.device().index()).has_buffer(storage)) return;
  make_view(tensor, c10::Storage(tensor.storage()), caffe2::TypeMeta::Make<uint8_t>(),
            {static_cast<int64_t>(storage->nbytes())}, {1}, 0)
      .zero_();
}

}  // namespace torch_remote::frontend
