#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>

#include "frontend/shapes/infer.h"

// Overloads that write their arguments. These functions check at the call what torch's CPU kernels would check.
namespace torch_remote::frontend {

// Raises if the arguments of an in-place op are invalid.
void check_in_place_call(const OpEntry& op, const c10::IValue* args);

// Resizes the out tensors of an out overload by the shape rule of its functional overload, for ops whose meta function
// in torch cannot. Returns false if there is no such rule, or if it declines these arguments.
bool resize_out(const OpEntry& op, const c10::IValue* args);

// The type of record_call (record_kernel.h).
using RecordCall = void (*)(const OpEntry& op, torch::jit::Stack& stack);

// Whether the result of a pointwise op must be converted to the dtype of the out tensor. A generated kernel would
// compute in the out tensor's dtype instead, where integers may wrap around that do not in the result's dtype.
bool converts_result(const OpEntry& op, const c10::IValue* args);

// Whether an out tensor has overlapping elements, and torch's kernel of the op may ignore the strides of its result
// (ir::writes_by_strides). Such a call goes through run_through_functional, whose copy raises CPU's error.
bool writes_shared_elements(const OpEntry& op, const c10::IValue* args);

// Runs the functional overload, then copies its result to the out tensors. Use it if converts_result or
// writes_shared_elements is true, or if the shapes depend on data. Replaces the arguments on the stack. Returns false
// if there is no functional overload.
bool run_through_functional(const OpEntry& op, torch::jit::Stack& stack, RecordCall record);

// For an in-place op that resizes `self`: runs the functional overload, resizes `self` and copies the result to it.
// Returns false if the size stays.
bool run_with_resize(const OpEntry& op, torch::jit::Stack& stack, RecordCall record);

}  // namespace torch_remote::frontend
