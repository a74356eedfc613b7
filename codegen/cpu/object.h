#pragma once

#include "codegen/cpu/code.h"
#include "ir/status.h"
#include "llvm/Support/MemoryBufferRef.h"

namespace torch_remote::codegen::cpu {

// Lays the code and the constants of an ELF object file of x86-64 one after the other and resolves what refers from one
// to the other, so that they can lie anywhere. Whatever names something outside, or needs more than that (data that is
// written, other relocations), is an error that names it.
Status link_object(llvm::MemoryBufferRef object, Code* code);

}  // namespace torch_remote::codegen::cpu
