#pragma once

#include "codegen/cpu/call.h"
#include "codegen/cpu/ops.h"
#include "codegen/loop/loop_ir.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/OwningOpRef.h"

namespace torch_remote::codegen::cpu {

inline constexpr const char* kRowsName = "rows";
inline constexpr const char* kFinishName = "finish";

// Builds a module of the LLVM dialect with RowsFunction and, if the kernel needs one, FinishFunction. The kernel must
// verify, have at most one row dim, and have no function that `expand_functions` would expand. `features` are those of
// the target.
mlir::OwningOpRef<mlir::ModuleOp> emit(const Kernel& kernel, const Features& features, const Variant& variant,
                                       mlir::MLIRContext& context);

}  // namespace torch_remote::codegen::cpu
