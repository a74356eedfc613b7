#pragma once

#include <cstdint>
#include <span>

#include "codegen/lower/launch.h"
#include "ir/status.h"

namespace torch_remote::codegen {

// Converts the innermost loops around the kernel (`launch->outer`) to row dims of the kernel, up to kMaxRows. If the
// kernel reduces over rows, it converts none, because each iteration of these loops is a reduction of its own. Also,
// the kernel now reads transposed operands with their strides instead of packed copies. The caller loops over what
// remains in `launch->outer`. kUnsupported: the resulting kernel would not be valid.
Status take_in_loops(Launch* launch);

// Advances to the next index of loops with these sizes, in row-major order. False: that was the last one.
bool next_index(std::span<const int64_t> sizes, std::span<int64_t> index);

// The operand's offset, in elements, at an index of the loops in Launch::outer.
int64_t offset_at(const Binding& binding, std::span<const int64_t> index);

}  // namespace torch_remote::codegen
