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

// The arguments of a call. data[i] has the bytes of operand i, from the element at position 0 of all its dims on.
struct Case {
  std::vector<int64_t> sizes, strides, bounds;
  std::vector<uint64_t> scalars;
  std::vector<Bytes> data;
};

// Makes dense operands, with the last dim innermost and indexed dims outermost. If the kernel's text marks the last
// column dim of an operand with `*`, its stride there is `gap`, otherwise 1. Elements are small random numbers, and
// among floats sometimes a special one.
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

// Calls RowsFunction for pieces of `piece` rows within each chunk, then FinishFunction (call.h). The memory of row
// buffers and totals ends at a page boundary, and the next page is inaccessible.
void run_compiled(const Compiled& compiled, const Arguments& arguments, IndexRecord* failure, int64_t piece = 7);

// Both functions write to `arguments->data`. Compiled code gets operands that end at a page boundary, too.
Status run_interpreter(const Kernel& kernel, Case* arguments, IndexFailure* failure);
void run_compiled(const Compiled& compiled, Case* arguments, IndexRecord* failure);

// Describes the first element that differs (NaN equals NaN), or returns "".
std::string difference(const Kernel& kernel, const Case& expected, const Case& got);

}  // namespace torch_remote::codegen::cpu::testing
