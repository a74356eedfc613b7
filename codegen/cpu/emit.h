#pragma once

#include "codegen/loop/loop_ir.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/OwningOpRef.h"

namespace torch_remote::codegen::cpu {

inline constexpr const char* kRowsName = "rows";
inline constexpr const char* kFinishName = "finish";

// A module of the LLVM dialect with RowsFunction and, if the kernel needs one, FinishFunction. The kernel verifies, has
// at most one row dim, and no function that `expand_functions` would expand. `masks_narrow`: the target has masked
// loads and stores of elements of 8 and 16 bits.
mlir::OwningOpRef<mlir::ModuleOp> emit(const Kernel& kernel, bool masks_narrow, mlir::MLIRContext& context);

}  // namespace torch_remote::codegen::cpu
