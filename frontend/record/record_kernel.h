#pragma once

#include <ATen/core/stack.h>

#include "frontend/shapes/infer.h"

// The boxed kernel that all recorded ops share.
namespace torch_remote::frontend {

// Checks the call, infers the results and records it. Replaces the arguments on the stack by the results.
void record_call(const OpEntry& op, torch::jit::Stack& stack);

}  // namespace torch_remote::frontend
