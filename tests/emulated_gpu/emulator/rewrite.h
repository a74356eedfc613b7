#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ir/status.h"
#include "tests/emulated_gpu/emulator/launch.h"

namespace llvm {
class Module;
class TargetMachine;
}  // namespace llvm

namespace torch_remote::codegen::emulator {

struct Rewritten {
  std::vector<std::string> sites;    // descriptions of instructions, by number
  std::vector<KernelImage> kernels;  // `run` is the function kRunPrefix + name
  std::vector<DeviceVariable> globals;
};
inline constexpr const char* kRunPrefix = "emulator.run.";

// Rewrites a module for NVPTX to one for this CPU, whose threads call the functions of runtime.h. kUnsupported lists
// all unknown names. Addresses that kernels get may have the bits `tag`.
Status rewrite(llvm::Module& module, const llvm::TargetMachine& cpu, bool checked, uint64_t tag, Rewritten* result);

}  // namespace torch_remote::codegen::emulator
