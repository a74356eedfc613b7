#pragma once

#include <vector>

#include "codegen/gpu/recipe.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/OwningOpRef.h"

namespace torch_remote::codegen::gpu {

// Builds a module of the LLVM and NVVM dialects with the functions of the recipe.
mlir::OwningOpRef<mlir::ModuleOp> emit(const Plans& plans, const Recipe& recipe, mlir::MLIRContext& context);

// The functions that a recipe has.
std::vector<Function> functions(const Recipe& recipe);

}  // namespace torch_remote::codegen::gpu
