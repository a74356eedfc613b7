#pragma once

#include <ATen/core/stack.h>
#include <c10/core/Device.h>

#include "frontend/shapes/infer.h"
#include "ir/ops/op_table.h"

// The kernels that all recorded ops share.
namespace torch_remote::frontend {

// Checks the call, infers the results and records it. Replaces the arguments on the stack by the results.
void record_call(const OpEntry& op, torch::jit::Stack& stack);

// The same for a functional op whose only result is a tensor, and for an in-place op that never resizes. Arguments are
// only read and may be borrowed (c10::MaybeOwned). No operand may be a lazy conjugate or negative.
at::Tensor record_single_result_call(const OpEntry& op, c10::IValue* args);
void record_fixed_size_in_place_call(const OpEntry& op, c10::IValue* args);

// For kernels that call Recorder::record() themselves: the device of the call's operands. Raises torch's error if they
// are on several devices.
c10::DeviceIndex operand_device(const ir::OpDesc& op, const c10::IValue* args);

}  // namespace torch_remote::frontend
