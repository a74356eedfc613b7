#pragma once

#include <utility>
#include <vector>

#include "ir/graph.h"

// What an op's semantics says about the sizes and strides in a graph, whatever the parameters are.
namespace torch_remote::passes {

// Pairs of symbols that are equal in every run in which the node is valid: sizes of operands and results. Empty where
// nothing is certain, or where the graph contradicts the op.
using EqualSizes = std::vector<std::pair<ir::Sym, ir::Sym>>;
void collect_equal_sizes(const ir::Graph& graph, const ir::Node& node, EqualSizes& out);

// The op makes its results contiguous, whatever its operands are.
bool makes_contiguous(const ir::OpDesc& desc);

// The pointwise node's result is contiguous because of what is known about its operands: torch gives it the operands'
// order of dims, and no operand asks for another order.
bool keeps_contiguous(const ir::Graph& graph, const ir::Node& node, const ir::View& result);

// The view's strides are, as symbols, those that the sizes give row-major.
bool is_contiguous(const ir::Graph& graph, const ir::View& view);

}  // namespace torch_remote::passes
