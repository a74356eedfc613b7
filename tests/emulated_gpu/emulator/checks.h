#pragma once

#include "llvm/ADT/DenseMap.h"
#include "llvm/IR/Argument.h"
#include "tests/emulated_gpu/emulator/sites.h"

namespace torch_remote::codegen::emulator {

// Struct arguments that a kernel gets by value, and their sizes.
using StructArguments = llvm::DenseMap<const llvm::Value*, uint64_t>;

// Inserts a runtime call at each memory access and at each iteration of a loop.
void add_checks(llvm::Module& module, Sites& sites, const StructArguments& structs);

}  // namespace torch_remote::codegen::emulator
