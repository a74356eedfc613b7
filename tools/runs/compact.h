#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ir/graph.h"

namespace torch_remote::tools {

// What of the old graph is still there, in the new order: old indices.
struct Kept {
  std::vector<uint32_t> params;
  std::vector<uint32_t> buffers;
  std::vector<uint32_t> inputs;  // among the input buffers
};

// The graph with just the symbols, buffers, views and lines that its nodes use, and without memory plan.
ir::Graph compact(const ir::Graph& graph, Kept* kept);
// Likewise with these nodes, of that graph, instead of all.
ir::Graph compact(const ir::Graph& graph, std::span<const ir::Node> nodes, Kept* kept);

}  // namespace torch_remote::tools
