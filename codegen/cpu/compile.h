#pragma once

#include <string>
#include <string_view>

#include "codegen/cpu/call.h"
#include "codegen/cpu/code.h"
#include "codegen/loop/loop_ir.h"
#include "ir/status.h"

// Compiles LoopIR to MLIR's LLVM dialect, to LLVM IR, and to machine code of this CPU's architecture. Needs LLVM.
namespace torch_remote::codegen::cpu {

// Processor time that the steps of a compilation took, in milliseconds.
struct CompileTimes {
  double expand = 0;     // replace functions by arithmetic
  double emit = 0;       // build the MLIR module
  double translate = 0;  // translate to LLVM IR
  double optimize = 0;
  double generate = 0;  // write an object file
  double link = 0;      // make position-independent code from it
  double total() const { return expand + emit + translate + optimize + generate + link; }
};

// The first one of the architecture that this library is compiled for: "x86-64-v4" or "aarch64".
std::string_view best_target();

struct CompileOptions {
  // On x86-64: "x86-64-v4" or "x86-64-v3" (AVX2, FMA, F16C); baseline x86-64 is not supported. On aarch64: "aarch64"
  // (NEON).
  std::string_view target = best_target();
  Variant variant = {};
  // Outputs for tests and tools, if not null.
  std::string* assembly = nullptr;
  CompileTimes* times = nullptr;
};

// Compiles a verified kernel with at most one row dim; functions that are not expanded yet are expanded. Any number of
// threads may call it at once.
Status compile(const Kernel& kernel, const CompileOptions& options, Code* code);

// The compiler's version, such as "LLVM 19.1.7, codegen 4". Part of the key of caches.
std::string_view compiler_version();

}  // namespace torch_remote::codegen::cpu
