#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "ir/analysis.h"
#include "ir/graph.h"

// Where a program's temporaries lie in its arena, for given sizes.
namespace torch_remote::worker {

struct Layout {
  static constexpr uint64_t kNotThere = std::numeric_limits<uint64_t>::max();
  static constexpr uint64_t kAlignment = 64;
  uint64_t size = 0;              // kNotThere: more than an arena can have
  std::vector<uint64_t> offsets;  // of each buffer; kNotThere: not in the arena
};

// Places the buffers with in_arena: in the order of their first nodes, best fit into what is free by then. A buffer
// takes over the memory that the graph's plan says, if it fits. `lifetimes` are the graph's, or longer.
void place(const ir::Graph& graph, const std::vector<ir::Lifetime>& lifetimes, const std::vector<bool>& in_arena,
           const std::vector<uint64_t>& nbytes, Layout* layout);

}  // namespace torch_remote::worker
