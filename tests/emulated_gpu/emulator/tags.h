#pragma once

#include <cstdint>

namespace llvm {
class Module;
}  // namespace llvm

namespace torch_remote::codegen::emulator {

// Makes each memory access clear the bits `tag` of its address. Accesses to local variables stay as they are.
void strip_tags(llvm::Module& module, uint64_t tag);

}  // namespace torch_remote::codegen::emulator
