#pragma once

#include "codegen/gpu/launch.h"
#include "codegen/gpu/recipe.h"
#include "codegen/gpu/row_reducer.h"

namespace torch_remote::codegen::gpu {

// Emits the code of a function at the builder's place in its first block. Enlarges *shared to the size that it needs.
void emit_body(LlvmBuilder& builder, Function function, const Plans& plans, const Recipe& recipe, mlir::Block* entry,
               SharedMemory* shared);

}  // namespace torch_remote::codegen::gpu
