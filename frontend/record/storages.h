#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "frontend/device/tensor.h"
#include "remote/client/remote_files.h"

// The buffers of the worker that storages own, and how storages get them: by upload, from a file, from a call's result,
// by resizing. Call these functions from any thread, with no lock held. They may send recorded ops, and then raise the
// loss of the worker.
namespace torch_remote::frontend {

// Whether something was written to the storage, or a recorded op will write to it.
bool has_buffer(const RemoteStorage* storage);
// Whether the storage had contents and lost them with a worker.
bool is_lost(const RemoteStorage* storage);
// Exchanges the buffers of two storages of one device, for a storage that is resized or completely overwritten.
void move_buffer(RemoteStorage* from, RemoteStorage* to);

// Uploads a CPU tensor's elements, packed contiguously, as the buffer of a storage that has none.
void upload_into(const at::Tensor& cpu, RemoteStorage* storage, c10::DeviceIndex device);
// Uploads to a new tensor of the same sizes and dtype.
at::Tensor upload_tensor(const at::Tensor& cpu, c10::DeviceIndex device);

// A new contiguous tensor with bytes of a file, from `offset` on. The worker reads the file. If that fails, the tensor
// behaves like the result of a failed op.
at::Tensor tensor_of_file(const std::string& path, const remote::FileVersion& version, uint64_t offset,
                          c10::IntArrayRef sizes, c10::ScalarType dtype, c10::DeviceIndex device);

// A new contiguous tensor over the buffer `id` of `nbytes` bytes, which a call made in this session of the worker. Its
// contents are lost if the session has ended.
at::Tensor tensor_of_result(uint64_t session, uint64_t id, uint64_t nbytes, c10::IntArrayRef sizes,
                            c10::ScalarType dtype, c10::DeviceIndex device);

// Changes a storage's size in bytes and keeps its first bytes.
void resize_storage(const c10::Storage& storage, size_t nbytes);

// A tensor over a storage whose buffer exists already. Sets the storage's size to fit.
at::Tensor adopt_storage(const c10::Storage& storage, c10::IntArrayRef sizes, c10::IntArrayRef strides,
                         c10::ScalarType dtype);

// Fills a buffer that was never written with zeros; torch.empty leaves such memory undefined. Call it before a tensor's
// buffer is sent without recording.
void fill_if_unwritten(const at::Tensor& tensor);

}  // namespace torch_remote::frontend
