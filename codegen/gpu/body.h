#pragma once

#include "codegen/gpu/launch.h"
#include "codegen/gpu/recipe.h"
#include "codegen/gpu/row_reducer.h"

namespace torch_remote::codegen::gpu {

// Emits the code of `function`. `entry` is the function's first block, in which the builder's insertion point is.
// Enlarges *shared to the size that the function needs.
void emit_body(LlvmBuilder& builder, Function function, const Plans& plans, const Recipe& recipe, mlir::Block* entry,
               SharedMemory* shared);

}  // namespace torch_remote::codegen::gpu
