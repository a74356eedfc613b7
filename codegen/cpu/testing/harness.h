#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "codegen/cpu/call.h"
#include "codegen/cpu/compile.h"
#include "codegen/cpu/executable_code.h"
#include "codegen/loop/loop_ir.h"

// Calls compiled kernels and the interpreter with the same arguments, and compares the memory that they wrote.
namespace torch_remote::codegen::cpu::testing {

using Bytes = std::vector<uint8_t>;

// Arguments of a call, and the operands' bytes, which begin with position 0.
struct Case {
  std::vector<int64_t> sizes, strides, bounds;
  std::vector<uint64_t> scalars;
  std::vector<Bytes> data;
};

// Makes dense operands, with the last dim innermost and indexed dims outermost. Strides that the kernel's text marks
// with `*` are `gap`. Elements are small random numbers, and among floats sometimes a special one.
Case make_case(const Kernel& kernel, const std::vector<int64_t>& sizes, const std::vector<int64_t>& bounds,
               uint64_t seed, int64_t gap = 3);

// The targets whose code this machine can run.
std::vector<std::string_view> targets();

// A compiled kernel, in executable memory.
struct Compiled {
  Kernel kernel;  // with expanded functions
  Schedule schedule;
  Code code;
  ExecutableCode placed;
};
Status compile_and_place(const Kernel& kernel, const CompileOptions& options, Compiled* compiled);

// Calls the code for pieces of `piece` rows within each chunk, then `finish`. The lines of spilled values and totals
// end at a page boundary, and the next page is inaccessible.
void run_compiled(const Compiled& compiled, const Arguments& arguments, IndexRecord* failure, int64_t piece = 7);

// Both functions change `data`. Compiled code gets operands that end at a page boundary, too.
Status run_interpreter(const Kernel& kernel, Case* arguments, IndexFailure* failure);
void run_compiled(const Compiled& compiled, Case* arguments, IndexRecord* failure);

// Describes the first element that differs (NaN equals NaN), or returns "".
std::string difference(const Kernel& kernel, const Case& expected, const Case& got);

}  // namespace torch_remote::codegen::cpu::testing
