#pragma once

#include "codegen/cpu/code.h"
#include "ir/status.h"
#include "llvm/Support/MemoryBufferRef.h"

namespace torch_remote::codegen::cpu {

// Makes position-independent code from an ELF object file of this architecture. It puts the code and the constants one
// after the other, and resolves the references between them. References to other symbols, writable data and other
// relocations are errors that name them.
Status link_object(llvm::MemoryBufferRef object, Code* code);

}  // namespace torch_remote::codegen::cpu
