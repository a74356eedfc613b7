#pragma once

#include <cstdint>
#include <vector>

#include "codegen/loop/loop_ir.h"

// A Plan assigns the values of a kernel to the loops of a function, for CPU code and GPU code. It is derived from the
// kernel's Schedule and its stores. Values are named by their indices in Kernel::values.
//
// A kernel has two functions. The *rows function* computes a range of rows, so that threads can share the rows. The
// *finish function* runs once after all rows, and computes what depends on reductions over rows.
namespace torch_remote::codegen::cpu {

// How often a value is computed. At kVector it is a vector along the last column dim, elsewhere a scalar.
enum class Scope : uint8_t {
  kFunction,  // once, before the rows
  kRow,       // once per row
  kOuter,     // once per position of the outer one of two column dims
  kVector,    // for each vector along the last column dim
};

// A loop over the columns of a row. All lists of values are in ascending order, so operands come before their users.
struct LoopPlan {
  uint32_t number = 0;
  std::vector<uint32_t> outers;   // values computed once per position of the outer column dim
  std::vector<uint32_t> vectors;  // values computed as vectors
  std::vector<uint32_t> reduces;  // reductions over columns that end with this loop
  std::vector<uint32_t> spills;   // indices into Schedule::spilled of values that this loop writes
  // Indices into Schedule::totals. To a reduction Over::kRows the loop adds each point, to one Over::kLines the result
  // of each line.
  std::vector<uint32_t> totals;  // Over::kRows
  std::vector<uint32_t> lines;   // Over::kLines
  // Indices into Kernel::stores, which only the last loop has: those that vary along the last column dim, and those
  // that are executed once per position of the outer column dim.
  std::vector<uint32_t> stores;
  std::vector<uint32_t> outer_stores;
  // A bool that is constant in a row, or kNone. Where it is false, the loop would only add zeros, and is skipped.
  uint32_t condition = kNone;
};

// The structure of one function. The rows function computes `before`. Then, for each row, it executes values[0],
// loops[0], values[1], loops[1], ... and then `totals` and `stores`, which do not vary over columns. The finish
// function does the same once, without rows.
struct Plan {
  bool finish = false;
  std::vector<Scope> scopes;     // of each value
  std::vector<uint32_t> levels;  // for each value: the first loop that can use it
  std::vector<uint32_t> before;  // values of Scope::kFunction
  std::vector<LoopPlan> loops;
  std::vector<std::vector<uint32_t>> values;  // values of Scope::kRow; has one list more than `loops`
  std::vector<uint32_t> totals;               // indices into Schedule::totals
  std::vector<uint32_t> stores;               // indices into Kernel::stores
  // For each value: its index in Schedule::spilled, or kNone. A spilled value that is not at Scope::kVector is
  // recomputed instead, and so are all values in the finish function: these have kNone.
  std::vector<uint32_t> spill_index;
  // For each value: the loop that stores it to memory, or kNone. Later loops load it.
  std::vector<uint32_t> spill_loop;

  bool empty() const { return loops.empty() && stores.empty() && totals.empty(); }
};

Plan plan_rows(const Kernel& kernel, const Schedule& schedule);
Plan plan_finish(const Kernel& kernel, const Schedule& schedule);

}  // namespace torch_remote::codegen::cpu
