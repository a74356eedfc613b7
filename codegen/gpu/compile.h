#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "codegen/gpu/assemble.h"
#include "codegen/gpu/code.h"
#include "codegen/gpu/launch.h"
#include "codegen/loop/loop_ir.h"
#include "ir/status.h"

namespace llvm {
class LLVMContext;
class Module;
}  // namespace llvm

// Compiles LoopIR to MLIR's LLVM and NVVM dialects, to LLVM IR, to PTX, and to machine code of an NVIDIA GPU.
namespace torch_remote::codegen::gpu {

struct GpuTarget {
  uint32_t sm = 90;  // compute capability: 75, 80, 90 or 100
};

// Processor time that the steps of a compilation took, in milliseconds.
struct CompileTimes {
  double expand = 0;     // replace functions by arithmetic
  double emit = 0;       // build the MLIR module
  double translate = 0;  // translate to LLVM IR
  double optimize = 0;
  double generate = 0;  // write PTX
  double assemble = 0;
  double total() const { return expand + emit + translate + optimize + generate + assemble; }
};

struct CompileOptions {
  const Assembler* assembler = nullptr;  // makes the cubin; null: there is no cubin (drivers accept PTX, too)
  // Outputs for tests and tools: intermediate forms, if not null.
  std::string* mlir = nullptr;
  std::string* llvm = nullptr;
  CompileTimes* times = nullptr;
};

// Compiles a verified kernel; functions that are not expanded yet are expanded. Returns kUnsupported if GPUs cannot
// compute it. Any number of threads may call it at once.
Status compile(const Kernel& kernel, const GpuTarget& target, const CompileOptions& options, GpuCode* code);

// Compiles only to the LLVM module after optimizations, from which `compile` makes PTX. The GPU emulator uses it.
Status compile_to_llvm(const Kernel& kernel, const GpuTarget& target, llvm::LLVMContext& context,
                       std::unique_ptr<llvm::Module>* module, Recipe* recipe);

// The compiler's version, which is part of the key of caches.
std::string_view compiler_version();

}  // namespace torch_remote::codegen::gpu
