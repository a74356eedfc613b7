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

// LoopIR -> MLIR's LLVM and NVVM dialects -> LLVM -> PTX -> machine code of an NVIDIA GPU.
namespace torch_remote::codegen::gpu {

struct GpuTarget {
  uint32_t sm = 90;  // 80, 90 or 100
};

// Milliseconds of processor time that a compilation took.
struct CompileTimes {
  double expand = 0;     // functions as arithmetic
  double emit = 0;       // MLIR
  double translate = 0;  // LLVM IR
  double optimize = 0;
  double generate = 0;  // PTX
  double assemble = 0;
  double total() const { return expand + emit + translate + optimize + generate + assemble; }
};

struct CompileOptions {
  const Assembler* assembler = nullptr;  // makes the cubin; without one there is none (drivers take PTX, too)
  // For tests and tools: what was made on the way.
  std::string* mlir = nullptr;
  std::string* llvm = nullptr;
  CompileTimes* times = nullptr;
};

// Of a kernel that verifies; functions that were not expanded are expanded. kUnsupported: no code here does what it
// does. Threads: any number at once.
Status compile(const Kernel& kernel, const GpuTarget& target, const CompileOptions& options, GpuCode* code);

// The same up to what PTX is made of: the module after LLVM's optimisations. For a GPU in software.
Status compile_to_llvm(const Kernel& kernel, const GpuTarget& target, llvm::LLVMContext& context,
                       std::unique_ptr<llvm::Module>* module, Recipe* recipe);

// What this compiler is: part of the key of caches.
std::string_view compiler_version();

}  // namespace torch_remote::codegen::gpu
