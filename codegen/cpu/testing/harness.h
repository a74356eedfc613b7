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

// The arguments of a call, as in Arguments (codegen/loop/loop_ir.h). data[i] has the bytes of operand i, from the
// element at position 0 of all its dims on.
struct Case {
  std::vector<int64_t> sizes, strides, bounds;
  std::vector<uint64_t> scalars;
  std::vector<Bytes> data;
};

// Makes dense operands, with the last dim innermost and indexed dims outermost. If the kernel's text marks the last
// column dim of an operand with `*`, its stride there is `gap`, otherwise 1. Elements are random. Floats are small, and
// sometimes special (NaN, infinities, denormals). Three of four integers are between -10 and 10; the others have any
// bits, so indices are often out of bounds. Bools are bytes from 0 to 2, and all but 0 are true.
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

// Calls RowsFunction for pieces of `piece` rows within each chunk, then FinishFunction (call.h). The kernel has at most
// one row dim. The memory of row buffers and totals ends at a page boundary, and the next page is inaccessible.
// *failure receives the first index that is out of bounds.
void run_compiled(const Compiled& compiled, const Arguments& arguments, IndexRecord* failure, int64_t piece = 7);

// Both functions write to `arguments->data`. The operands of compiled code end at a page boundary, too, and the next
// page is inaccessible.
Status run_interpreter(const Kernel& kernel, Case* arguments, IndexFailure* failure);
void run_compiled(const Compiled& compiled, Case* arguments, IndexRecord* failure);

// Describes the first element of any operand that differs, or returns "". Elements agree if their bits are equal, or if
// both are NaN.
std::string difference(const Kernel& kernel, const Case& expected, const Case& got);

}  // namespace torch_remote::codegen::cpu::testing
