#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>

// Kernels that are not "record this op": factories, views, copies between devices, storages, host reads.
namespace torch_remote::frontend {

// True for the ops that kernels.cpp and autocast.cpp register themselves ("aten::empty.memory_format").
bool is_own_kernel(std::string_view name);

// A CPU tensor's bytes on the device, contiguous, same dtype.
at::Tensor upload_tensor(const at::Tensor& cpu, c10::DeviceIndex device);

// Changes a storage's size; its first bytes stay.
void resize_storage_bytes(const c10::Storage& storage, size_t nbytes);

// A tensor over a storage whose buffer exists already, sized to fit.
at::Tensor adopt_storage(const c10::Storage& storage, c10::IntArrayRef sizes, c10::IntArrayRef strides,
                         c10::ScalarType dtype);

// For those who send a tensor's buffer without recording: one that nobody has written is filled, with zeros, as
// undefined as torch.empty's memory.
void fill_if_unwritten(const at::Tensor& tensor);

}  // namespace torch_remote::frontend
