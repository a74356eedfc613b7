#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "remote/client/worker_memory.h"

// Requests to a device's worker that depend on recorded ops. Each first sends the ops that it depends on. Call these
// functions from any thread, with no lock held and without the GIL. They raise the loss of the worker, and Ctrl-C.
namespace torch_remote::frontend {

// Copies a remote tensor's elements to `destination`, packed in row-major order. Exactly numel * itemsize bytes are
// transferred. `reason` is for the log: "item", "copy to cpu", ... Raises failures that the contents depend on.
void read_tensor(const at::Tensor& tensor, void* destination, const char* reason);

// Asks for the worker's memory state. Does not raise failures of ops.
remote::MemoryLimits request_memory(c10::DeviceIndex device, const remote::MemoryRequest& request);

// Lets the worker call a Python function with these tensors (remote::RemoteFunctions::call), without waiting. Returns
// the session, the ticket, and the first buffer id of the results.
std::array<uint64_t, 3> call_function(c10::DeviceIndex device, std::span<const std::byte> request,
                                      const std::vector<at::Tensor>& tensors);

}  // namespace torch_remote::frontend
