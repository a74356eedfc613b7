#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>

#include "codegen/loop/loop_ir.h"

// Prints pointwise LoopIR as CUDA C++, which hand-written kernels include.
namespace torch_remote::codegen::formulas {

std::string join(std::initializer_list<std::string_view> parts);

// The C++ type of a value: "float", "long", ...
std::string_view cuda_type(ir::DType type);

// The statements that compute a value of the kernel, and return it as `type`. `input` gives the expression of a load or
// of a scalar. Functions that LoopIR must expand are calls of those that `print_function` prints.
std::string print_cuda(const Kernel& kernel, uint32_t result, ir::DType type,
                       const std::function<std::string(const Value&)>& input);

// The function of an op in f32, f64 or i64, in the namespace `f32`, `f64` or `i64`. Empty if C++ has it (operations.h),
// or the op does not take this type.
std::string print_function(ir::ScalarOp op, ir::DType type);

// A function `apply(op, x, y)` for f32, f64 or i64, which computes any ScalarOp except `where`; bool results are 0
// or 1. Bools and narrow integers are computed as i64; the caller wraps the result. For floats, also `log_add_exp(x,
// y)`.
std::string print_apply(ir::DType type);

}  // namespace torch_remote::codegen::formulas
