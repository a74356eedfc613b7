#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "codegen/loop/loop_ir.h"
#include "ir/graph.h"

namespace torch_remote::codegen {

// Where an operand's elements are.
struct Binding {
  uint32_t buffer = 0;               // of the graph
  int64_t offset = 0;                // elements
  std::vector<int64_t> strides;      // elements: of the kernel's dims, then the indexed ones
  std::vector<int64_t> outer;        // of Launch::outer
  std::vector<int64_t> bounds = {};  // of the indexed dims
  // Its elements lie across: who calls copies those of some rows side by side first, and what is stored there back
  // afterwards. The kernel has one row dim and one column dim, and finds their columns 1 apart.
  bool packed = false;
  // It is stored to by adding: its elements are set to 0 before, `bounds` times those of the kernel's dims.
  bool zeroed = false;
};

// Indices in memory: each of them is to be one of so many places.
struct IndexCheck {
  uint32_t buffer = 0;  // of the graph
  ir::DType dtype = ir::DType::kInt64;
  int64_t offset = 0;                   // elements
  std::vector<int64_t> sizes, strides;  // elements
  int64_t bound = 0;
  bool wraps = false;              // those below zero count from the end
  std::optional<int64_t> ignored;  // this one is no place, and may be anything
};

// A kernel, and what one run calls it with. Dims that are not the kernel's are looped over by who calls.
struct Launch {
  Kernel kernel;               // one row dim at most
  std::vector<int64_t> sizes;  // of its dims
  // Sizes of the dims around it, outer ones first. Reductions over rows are done at each of their places.
  std::vector<int64_t> outer;
  std::vector<Binding> operands;
  std::vector<uint64_t> scalars;
  std::vector<ir::Sym> scalar_symbols;  // of each: the symbol that it is, or kNoSym
  std::vector<ir::Sym> depends;         // on which symbols' values what is here depends, but for views and those
  // Of a reduction of all: after the rows one more, of so many places in the last column dim; 0: none.
  int64_t rest = 0;
  // Its rows are those of the launch before it, of other columns (ir/fusion/sections.h): done in turn, some rows at a
  // time, both find what they read in the cache.
  bool in_turn = false;
  std::vector<IndexCheck> checks;
  bool computes_indices = false;  // there are others, that the kernel computes
  // Something is written that was there before: where an index is out of bounds, nothing may be done.
  bool checks_first = false;
  // An element's number is taken apart into places along several dims: what fails is one of these, not the number.
  bool splits_numbers = false;
  std::vector<uint32_t> nodes;  // of the graph: that of each of the kernel's indexed operands, for messages
};

}  // namespace torch_remote::codegen
