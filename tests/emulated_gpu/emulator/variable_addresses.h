#pragma once

#include <vector>

#include "ir/status.h"
#include "tests/emulated_gpu/emulator/builder.h"
#include "tests/emulated_gpu/emulator/launch.h"

namespace torch_remote::codegen::emulator {

// Assigns addresses to variables: offsets in the block's shared memory, and allocations in the device's memory.
class VariableAddresses {
 public:
  VariableAddresses(llvm::Module& module, bool checked) : module_(module), b_(module), checked_(checked) {}

  // Adds the shared variables that the kernel uses to *image, with their offsets. Must precede `replace`.
  void add_kernel(llvm::Function& kernel, KernelImage* image);
  // Replaces all variables, and adds those of the device to *globals.
  Status replace(std::vector<DeviceVariable>* globals);

 private:
  struct Shared {
    llvm::GlobalVariable* variable;
    uint64_t offset, bytes;
  };
  void lay_out();
  Status replace_device_variable(llvm::GlobalVariable& variable, std::vector<DeviceVariable>* globals);
  void replace_uses(llvm::GlobalVariable& variable, llvm::function_ref<llvm::Value*()> address);

  llvm::Module& module_;
  Builder b_;
  bool checked_;
  bool laid_out_ = false;
  std::vector<Shared> shared_;  // dynamic variables are last, and share one offset
  uint64_t dynamic_offset_ = 0;
};

}  // namespace torch_remote::codegen::emulator
