#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>

#include "frontend/shapes/infer.h"

// Overloads that write their arguments: what CPU's kernels would check is checked at the call.
namespace torch_remote::frontend {

// Raises what is wrong with the arguments of an in-place op.
void check_in_place_call(const OpEntry& op, const c10::IValue* args);

// An out overload whose functional one has a rule of ours: what torch's meta may not know. False if there is none.
bool resize_out(const OpEntry& op, const c10::IValue* args);

// record_kernel.h
using RecordCall = void (*)(const OpEntry& op, torch::jit::Stack& stack);

// Whether a pointwise op's result has another dtype than what an out overload writes: kernels that are generated would
// compute in the latter, where integers wrap elsewhere.
bool converts_result(const OpEntry& op, const c10::IValue* args);

// Whether an out overload would write elements that share memory by a kernel that may not (ir::writes_by_strides). The
// copy of a result raises where CPU does.
bool writes_shared_elements(const OpEntry& op, const c10::IValue* args);

// An out overload that one of these is true of, or whose shapes cannot be told beforehand: the functional one, and a
// copy. Replaces the arguments on the stack. False if there is none.
bool run_through_functional(const OpEntry& op, torch::jit::Stack& stack, RecordCall record);

// An in-place op that gives `self` the size of the functional overload's result: that one, and a copy. False if the
// size stays.
bool run_with_resize(const OpEntry& op, torch::jit::Stack& stack, RecordCall record);

}  // namespace torch_remote::frontend
