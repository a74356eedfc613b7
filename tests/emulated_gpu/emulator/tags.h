#pragma once

#include <cstdint>

namespace llvm {
class Module;
}  // namespace llvm

namespace torch_remote::codegen::emulator {

// Has each access to memory take the bits `tag` off its address. Variables of threads are left alone.
void take_tags_off(llvm::Module& module, uint64_t tag);

}  // namespace torch_remote::codegen::emulator
