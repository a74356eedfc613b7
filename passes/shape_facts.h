#pragma once

#include <utility>
#include <vector>

#include "ir/graph.h"

// Facts about the sizes and strides in a graph that follow from an op's semantics, for any parameters.
namespace torch_remote::passes {

// Pairs of symbols that are equal in every run in which the node is valid: sizes of operands and results. Empty if
// nothing is certain, or if the graph contradicts the op.
using EqualSizes = std::vector<std::pair<ir::Sym, ir::Sym>>;
void collect_equal_sizes(const ir::Graph& graph, const ir::Node& node, EqualSizes& out);

// Whether the op makes its results contiguous for any operands.
bool result_is_contiguous(const ir::OpDesc& desc);

// Whether a pointwise node's result is contiguous because its operands are. The result has the stride order of the
// operands. So each operand with several dims that may be larger than 1 must be contiguous. One contiguous operand must
// have the sizes of the result, and no size of the result may be the constant 0 or 1.
bool keeps_contiguous(const ir::Graph& graph, const ir::Node& node, const ir::View& result);

// Whether the view's strides are, as symbols, the row-major strides of its sizes.
bool is_contiguous(const ir::Graph& graph, const ir::View& view);

}  // namespace torch_remote::passes
