#pragma once

#include <ATen/core/stack.h>

#include "frontend/shapes/infer.h"

// The kernels that all recorded ops share.
namespace torch_remote::frontend {

// Checks the call, infers the results and records it. Replaces the arguments on the stack by the results.
void record_call(const OpEntry& op, torch::jit::Stack& stack);

// Likewise, of a functional op with one tensor as its result, and of one in place that resizes nothing: arguments are
// read, and may be lent (c10::MaybeOwned). No operand is a lazy conjugate or negative.
at::Tensor record_plain_call(const OpEntry& op, c10::IValue* args);
void record_plain_in_place_call(const OpEntry& op, c10::IValue* args);

}  // namespace torch_remote::frontend
