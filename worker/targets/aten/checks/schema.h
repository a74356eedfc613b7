#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>
#include <string_view>

// What torch's dispatcher knows about an op.
namespace torch_remote::worker::aten {

// By schema name, "aten::add.Tensor"; throws c10::NotImplementedError if there is none.
c10::OperatorHandle find_operator(std::string_view name);

// Whether there is one, with a kernel for `key` or one that is for all.
bool can_run(std::string_view name, c10::DispatchKey key);

// Whether a GPU's kernels do it, and no data can make them harm the session. Not those that take positions from a
// tensor: an index out of range ends all work on the GPU. Nor random ones: their numbers are to be those of the CPU's
// worker. Those are done by the worker's own kernels, or by nobody.
bool can_run_on_gpu(std::string_view name);

// The overload that computes the same into tensors that it is given, if it has a kernel of its own for `key` (and is
// not just the functional one with a copy). Its arguments are those of `functional`, then one for each result.
std::optional<c10::OperatorHandle> find_out_variant(const c10::OperatorHandle& functional, c10::DispatchKey key);

}  // namespace torch_remote::worker::aten
