#pragma once

#include <cstdint>
#include <memory>

#include "codegen/gpu/code.h"
#include "codegen/gpu/launch.h"
#include "codegen/loop/loop_ir.h"
#include "ir/status.h"

namespace llvm {
class LLVMContext;
class Module;
}  // namespace llvm

// Compiles LoopIR to MLIR's LLVM and NVVM dialects, to LLVM IR, and to PTX.
namespace torch_remote::codegen::gpu {

struct GpuTarget {
  uint32_t sm = 90;  // compute capability: 75, 80, 90 or 100
};

// Compiles a verified kernel to PTX; functions that are not expanded yet are expanded. Returns kUnsupported if GPUs
// cannot compute it. Any number of threads may call it at once. An Assembler (assemble.h) makes the cubin.
Status compile(const Kernel& kernel, const GpuTarget& target, GpuCode* code);

// Compiles only to the LLVM module after optimizations, from which `compile` makes PTX. The GPU emulator uses it.
Status compile_to_llvm(const Kernel& kernel, const GpuTarget& target, llvm::LLVMContext& context,
                       std::unique_ptr<llvm::Module>* module, Recipe* recipe);

}  // namespace torch_remote::codegen::gpu
