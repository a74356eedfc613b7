#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ir/graph.h"

namespace torch_remote::ir {

// The remaining parts of the old graph: old indices, in the new order.
struct Remaining {
  std::vector<uint32_t> params;
  std::vector<uint32_t> buffers;
  std::vector<uint32_t> inputs;  // indices among the input buffers
};

// The graph with only the symbols, buffers, views and source lines that its nodes use, and without memory plan.
Graph compact(const Graph& graph, Remaining* remaining);
// The same, with only the given nodes of the graph.
Graph compact(const Graph& graph, std::span<const Node> nodes, Remaining* remaining);

}  // namespace torch_remote::ir
