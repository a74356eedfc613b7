#pragma once

#include <ATen/core/boxing/KernelFunction.h>

#include <optional>

#include "frontend/shapes/infer.h"

namespace torch_remote::frontend {

// A kernel for calls from C++ with arguments as they are, of an op whose schema is one of the most used ones; it serves
// boxed calls, too. Nothing: the op has another schema, or may do more than make one tensor or write to one.
//
// A boxed call copies its operands to a stack. torch counts who has a tensor, and at the first one beside Python, and
// when that one has let go, it takes Python's lock: 60 ns each time.
std::optional<c10::KernelFunction> plain_kernel(const OpEntry& op);

}  // namespace torch_remote::frontend
