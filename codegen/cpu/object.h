#pragma once

#include "codegen/cpu/code.h"
#include "ir/status.h"
#include "llvm/Support/MemoryBufferRef.h"

namespace torch_remote::codegen::cpu {

// Makes position-independent code from an x86-64 ELF object file. It puts the code and the constants one after the
// other, and resolves the references between them. References to other symbols, writable data and other relocations are
// errors that name them.
Status link_object(llvm::MemoryBufferRef object, Code* code);

}  // namespace torch_remote::codegen::cpu
