#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>
#include <string_view>

// Queries torch's dispatcher about ops.
namespace torch_remote::worker::aten {

// Finds an op by its schema name, such as "aten::add.Tensor"; throws c10::NotImplementedError if there is none.
c10::OperatorHandle find_operator(std::string_view name);

// Whether the op exists and has a kernel for `key`, or one for all keys.
bool can_run(std::string_view name, c10::DispatchKey key);

// Whether torch's CUDA kernels implement the op and no data can make them harm the session. This excludes ops that take
// indices from a tensor, because an index out of range ends all work on the GPU. It excludes random ops, because their
// numbers must equal those of a worker on a CPU. Only the worker's hand-written kernels execute such ops on a GPU.
bool can_run_on_gpu(std::string_view name);

// The overload that computes the same into given tensors, if it has a separate kernel for `key`. An overload that
// copies the functional overload's results does not count. Its arguments are those of `functional`, then one for each
// result.
std::optional<c10::OperatorHandle> find_out_variant(const c10::OperatorHandle& functional, c10::DispatchKey key);

}  // namespace torch_remote::worker::aten
