#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "codegen/loop/loop_ir.h"
#include "ir/graph.h"

namespace torch_remote::codegen {

// Memory of an operand.
struct Binding {
  uint32_t buffer = 0;               // index in the graph
  int64_t offset = 0;                // in elements
  std::vector<int64_t> strides;      // in elements: along the kernel's dims, then along the indexed dims
  std::vector<int64_t> outer;        // along the dims of Launch::outer
  std::vector<int64_t> bounds = {};  // of the indexed dims
  // The operand is transposed. The caller copies some of its rows to contiguous memory first, and copies stored
  // elements back afterwards. The kernel has one row dim and one column dim, and sees a column stride of 1.
  bool packed = false;
  // The kernel adds to this operand, so the caller first sets elements to 0: those at every combination of indices
  // below `bounds` and positions along the kernel's dims.
  bool needs_zero_fill = false;
};

// Indices in memory that must be checked against a bound.
struct IndexCheck {
  uint32_t buffer = 0;  // index in the graph
  ir::DType dtype = ir::DType::kInt64;
  int64_t offset = 0;                   // in elements
  std::vector<int64_t> sizes, strides;  // strides in elements
  int64_t bound = 0;
  bool wraps = false;              // negative indices count from the end
  std::optional<int64_t> ignored;  // an index with this value is not checked
};

// A kernel and its arguments in one run. The caller loops over the dims that are not the kernel's.
struct Launch {
  Kernel kernel;               // has at most one row dim
  std::vector<int64_t> sizes;  // of the kernel's dims
  // Sizes of the dims around the kernel, outermost first. The kernel is called once for each position along them, so a
  // reduction over rows has one result per position.
  std::vector<int64_t> outer;
  std::vector<Binding> operands;
  std::vector<uint64_t> scalars;
  std::vector<ir::Sym> scalar_symbols;  // for each scalar: the symbol that it comes from, or kNoSym
  // Symbols whose values this launch depends on, in addition to those of views and scalar_symbols.
  std::vector<ir::Sym> depends;
  // For a full reduction: one more row follows the others, with this size of the last column dim. 0: there is none.
  int64_t remainder_columns = 0;
  // The launch has the rows of the previous launch, with other columns (ir/fusion/sections.h). If the two launches
  // alternate after every few rows, both find their inputs in the cache.
  bool alternates_with_previous = false;
  std::vector<IndexCheck> checks;
  bool computes_indices = false;  // the kernel computes further indices, which `checks` does not contain
  // The kernel overwrites existing data, so it must not start unless all indices are in bounds.
  bool check_indices_first = false;
  // The kernel splits an element's linear index into indices along several dims. A reported failure names one of these,
  // not the linear index.
  bool splits_linear_indices = false;
  // For each of the kernel's operands: the graph's node that an error message about its indices names.
  std::vector<uint32_t> nodes;
};

// Updates the numbers that are arguments of the kernel. `values` holds the values of all symbols of the graph.
inline void set_scalars(std::span<const int64_t> values, Launch* launch) {
  for (size_t i = 0; i < launch->scalars.size(); ++i) {
    const ir::Sym symbol = launch->scalar_symbols[i];
    if (symbol != ir::kNoSym) launch->scalars[i] = static_cast<uint64_t>(values[symbol]);
  }
}

}  // namespace torch_remote::codegen
