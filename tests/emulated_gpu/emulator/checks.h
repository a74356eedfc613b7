#pragma once

#include "llvm/ADT/DenseMap.h"
#include "llvm/IR/Argument.h"
#include "tests/emulated_gpu/emulator/sites.h"

namespace torch_remote::codegen::emulator {

// Structs that a kernel gets by value, and their sizes.
using StructArguments = llvm::DenseMap<const llvm::Value*, uint64_t>;

// Has each access to memory and each turn of a loop tell the runtime.
void add_checks(llvm::Module& module, Sites& sites, const StructArguments& structs);

}  // namespace torch_remote::codegen::emulator
