#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ir/graph.h"

namespace torch_remote::tools {

// The remaining parts of the old graph: old indices, in the new order.
struct Remaining {
  std::vector<uint32_t> params;
  std::vector<uint32_t> buffers;
  std::vector<uint32_t> inputs;  // indices among the input buffers
};

// The graph with only the symbols, buffers, views and source lines that its nodes use, and without memory plan.
ir::Graph compact(const ir::Graph& graph, Remaining* remaining);
// The same, with only the given nodes of the graph.
ir::Graph compact(const ir::Graph& graph, std::span<const ir::Node> nodes, Remaining* remaining);

}  // namespace torch_remote::tools
