#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "ir/graph.h"

namespace torch_remote::tools {

// Pairs (earlier node, later node) where the later one reads or overwrites what the earlier one was the last to write.
// Sorted, without duplicates.
std::vector<std::pair<uint32_t, uint32_t>> dependencies(const ir::Graph& graph);

}  // namespace torch_remote::tools
