#pragma once

#include <cstdint>
#include <vector>

#include "codegen/loop/loop_ir.h"

// Which value is computed in which loop of a function: a kernel's Schedule, seen from what is stored.
namespace torch_remote::codegen::cpu {

// Where a value is a single number, and when: a vector along the last column dim, or a scalar.
enum class Scope : uint8_t {
  kFunction,  // before the rows
  kRow,       // once a row
  kOuter,     // once a place of the outer one of two column dims
  kVector,    // varies along the last column dim
};

// A loop over the columns of a row. Numbers of values ascend, so operands come before their users.
struct LoopPlan {
  uint32_t number = 0;
  std::vector<uint32_t> outers;        // values computed once a place of the outer column dim
  std::vector<uint32_t> vectors;       // values computed as vectors
  std::vector<uint32_t> reduces;       // reductions over columns that end with this loop
  std::vector<uint32_t> keeps;         // of Schedule::kept: written here
  std::vector<uint32_t> totals;        // of Schedule::totals: added to here, point by point
  std::vector<uint32_t> lines;         // of Schedule::totals: added to here, by sums of lines
  std::vector<uint32_t> stores;        // of Kernel::stores
  std::vector<uint32_t> outer_stores;  // of Kernel::stores: once a place of the outer column dim
  // A bool of the row. Where it is false, all that the loop computes is sums of zeros, and the loop is left out.
  uint32_t condition = kNone;
};

// What one function does. Rows function: `before`, then for each row values[0], loops[0], values[1], loops[1], ... and
// the row's own totals and stores. The finish function has no rows and does the same once.
struct Plan {
  bool finish = false;
  std::vector<Scope> scopes;     // of each value
  std::vector<uint32_t> levels;  // of each value: the first loop that can use it
  std::vector<uint32_t> before;
  std::vector<LoopPlan> loops;
  std::vector<std::vector<uint32_t>> values;  // one list more than loops
  std::vector<uint32_t> totals;
  std::vector<uint32_t> stores;
  std::vector<uint32_t> kept_as;  // of each value: its number in Schedule::kept, or kNone
  std::vector<uint32_t> kept_in;  // of each value: the loop that keeps it; later ones load it

  bool empty() const { return loops.empty() && stores.empty() && totals.empty(); }
};

Plan plan_rows(const Kernel& kernel, const Schedule& schedule);
Plan plan_finish(const Kernel& kernel, const Schedule& schedule);

}  // namespace torch_remote::codegen::cpu
