#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

#include "codegen/loop/loop_ir.h"

// Prints the operations of LoopIR as CUDA C++, which hand-written kernels include.
namespace torch_remote::codegen::formulas {

// The types that the printed functions compute in. The caller converts other dtypes to one of them.
inline constexpr ir::DType kTypes[] = {ir::DType::kFloat32, ir::DType::kFloat64, ir::DType::kInt64};

// Concatenates the parts.
std::string join(std::initializer_list<std::string_view> parts);

// A kernel that stores `op` of its scalars.
Kernel kernel_of(ir::ScalarOp op, ir::DType type);

// The function of an op in one of kTypes, in the namespace `f32`, `f64` or `i64`. Empty if C++ has it (operations.h),
// or the op does not take this type.
std::string print_function(ir::ScalarOp op, ir::DType type);

// A function `apply(op, x, y)` for one of kTypes, which computes any ScalarOp except `where`; bool results are 0 or 1.
// Bools and narrow integers are computed as i64; the caller wraps the result. For floats, also `log_add_exp(x, y)`.
std::string print_apply(ir::DType type);

}  // namespace torch_remote::codegen::formulas
