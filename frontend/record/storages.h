#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "frontend/device/tensor.h"
#include "remote/client/types.h"

// Storages and the worker's buffers: uploaded, adopted, resized.
namespace torch_remote::frontend {

// A CPU tensor's bytes, contiguous, as the buffer of a storage that has none.
void upload_into(const at::Tensor& cpu, RemoteStorage* storage, c10::DeviceIndex device);
// The same in a new tensor of the same dtype.
at::Tensor upload_tensor(const at::Tensor& cpu, c10::DeviceIndex device);

// A new contiguous tensor of bytes of a file that the worker reads, from `offset` on. Where that fails, the tensor is
// that of a failed op.
at::Tensor tensor_of_file(const std::string& path, const remote::FileVersion& version, uint64_t offset,
                          c10::IntArrayRef sizes, c10::ScalarType dtype, c10::DeviceIndex device);

// A new contiguous tensor over the buffer `id` of `nbytes`, which a call made.
at::Tensor tensor_of_result(uint64_t id, uint64_t nbytes, c10::IntArrayRef sizes, c10::ScalarType dtype,
                            c10::DeviceIndex device);

// Changes a storage's size; its first bytes stay.
void resize_storage(const c10::Storage& storage, size_t nbytes);

// A tensor over a storage whose buffer exists already, sized to fit.
at::Tensor adopt_storage(const c10::Storage& storage, c10::IntArrayRef sizes, c10::IntArrayRef strides,
                         c10::ScalarType dtype);

// For those who send a tensor's buffer without recording: one that nobody has written is filled, with zeros, as
// undefined as torch.empty's memory.
void fill_if_unwritten(const at::Tensor& tensor);

}  // namespace torch_remote::frontend
