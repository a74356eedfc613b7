#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>
#include <string_view>

// What torch's dispatcher knows about an op.
namespace torch_remote::worker::aten {

// By schema name, "aten::add.Tensor"; throws c10::NotImplementedError if there is none.
c10::OperatorHandle find_operator(std::string_view name);

// Whether there is one, with a kernel that runs on the CPU.
bool can_run(std::string_view name);

// The overload that computes the same into tensors that it is given, if it has a CPU kernel of its own (and is not just
// the functional one with a copy). Its arguments are those of `functional`, then one for each result.
std::optional<c10::OperatorHandle> find_out_variant(const c10::OperatorHandle& functional);

}  // namespace torch_remote::worker::aten
