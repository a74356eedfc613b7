#pragma once

#include <string>
#include <string_view>

#include "codegen/cpu/call.h"
#include "codegen/cpu/code.h"
#include "codegen/loop/loop_ir.h"
#include "ir/status.h"

// LoopIR -> MLIR's LLVM dialect -> LLVM -> code of an x86-64 CPU. This is where LLVM is.
namespace torch_remote::codegen::cpu {

// Milliseconds of processor time that a compilation took.
struct CompileTimes {
  double expand = 0;     // functions as arithmetic
  double emit = 0;       // MLIR
  double translate = 0;  // LLVM IR
  double optimize = 0;
  double generate = 0;  // an object file
  double link = 0;      // the code
  double total() const { return expand + emit + translate + optimize + generate + link; }
};

struct CompileOptions {
  std::string_view target = "x86-64-v4";  // or "x86-64-v3" (AVX2, FMA, F16C); baseline x86-64 is none
  Variant variant = {};
  // For tests and tools: what was made on the way.
  std::string* mlir = nullptr;
  std::string* llvm = nullptr;
  std::string* assembly = nullptr;
  CompileTimes* times = nullptr;
};

// Of a kernel that verifies and has at most one row dim; functions that were not expanded are expanded. Threads: any
// number at once.
Status compile(const Kernel& kernel, const CompileOptions& options, Code* code);

// What this compiler is: "LLVM 19.1.7, codegen 2". Part of the key of caches.
std::string_view compiler_version();

}  // namespace torch_remote::codegen::cpu
