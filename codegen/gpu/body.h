#pragma once

#include "codegen/gpu/launch.h"
#include "codegen/gpu/recipe.h"
#include "codegen/gpu/team.h"
#include "mlir/IR/ImplicitLocOpBuilder.h"

namespace torch_remote::codegen::gpu {

// What a function does, at the builder's place in its first block; *shared becomes as large as it needs.
void emit_body(mlir::ImplicitLocOpBuilder& builder, Function function, const Plans& plans, const Recipe& recipe,
               mlir::Block* entry, SharedMemory* shared);

}  // namespace torch_remote::codegen::gpu
