#pragma once

#include <ATen/core/boxing/KernelFunction.h>

#include <optional>

#include "frontend/shapes/infer.h"

namespace torch_remote::frontend {

// An unboxed kernel for an op with one of the most common schemas; it also serves boxed calls. Returns nothing if the
// op has another schema, or may do more than create one tensor or write to one.
//
// A boxed call copies its operands to a stack. torch takes the GIL when a tensor gets its first owner other than its
// Python object, and again when it loses this owner. Taking the GIL costs 60 ns each time; an unboxed kernel avoids it.
std::optional<c10::KernelFunction> unboxed_kernel(const OpEntry& op);

}  // namespace torch_remote::frontend
