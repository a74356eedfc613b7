#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "codegen/cpu/call.h"
#include "codegen/cpu/compile.h"
#include "codegen/cpu/place.h"
#include "codegen/loop/loop_ir.h"

// Calls of compiled kernels and of the interpreter with the same arguments, and what they left in memory.
namespace torch_remote::codegen::cpu::testing {

using Bytes = std::vector<uint8_t>;

// Arguments and the operands' bytes, place 0 first.
struct Case {
  std::vector<int64_t> sizes, strides, bounds;
  std::vector<uint64_t> scalars;
  std::vector<Bytes> data;
};

// Operands that lie densely, the last dim innermost and indexed dims outermost; `*` strides are `gap`. Elements are
// random: small numbers, and where they are floats now and then a special one.
Case make_case(const Kernel& kernel, const std::vector<int64_t>& sizes, const std::vector<int64_t>& bounds,
               uint64_t seed, int64_t gap = 3);

// Targets whose code this machine can run.
std::vector<std::string_view> targets();

// A kernel that was compiled, in executable memory.
struct Compiled {
  Kernel kernel;  // functions expanded
  Schedule schedule;
  Code code;
  PlacedCode placed;
};
Status compile_and_place(const Kernel& kernel, const CompileOptions& options, Compiled* compiled);

// Calls the code for pieces of `piece` rows within each chunk, then `finish`. Lines of kept values and totals are at
// the end of a page behind which is none.
void run_compiled(const Compiled& compiled, const Arguments& arguments, IndexRecord* failure, int64_t piece = 7);

// Both change `data`. The code finds operands at the end of a page, too.
Status run_interpreter(const Kernel& kernel, Case* arguments, IndexFailure* failure);
void run_compiled(const Compiled& compiled, Case* arguments, IndexRecord* failure);

// The first element in which they differ (NaN equals NaN), or nothing.
std::string difference(const Kernel& kernel, const Case& expected, const Case& got);

}  // namespace torch_remote::codegen::cpu::testing
