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
  std::vector<std::string> sites;    // what the code calls instructions by number
  std::vector<KernelImage> kernels;  // `run` is the function kRunPrefix + name
  std::vector<GlobalFacts> globals;
};
inline constexpr const char* kRunPrefix = "emulator.run.";

// Makes a module for NVPTX one for this CPU, whose threads call what runtime.h has. kUnsupported names all that is not
// known. Addresses that it is given may have the bits `tag`.
Status rewrite(llvm::Module& module, const llvm::TargetMachine& cpu, bool checked, uint64_t tag, Rewritten* result);

}  // namespace torch_remote::codegen::emulator
