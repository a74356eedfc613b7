#pragma once

#include <cstdint>
#include <vector>

#include "ir/graph.h"

// A program's memory over its nodes: when each fresh buffer is alive, and where it could be placed.
namespace torch_remote::tools {

struct MemoryBar {
  uint32_t buffer = 0;
  uint32_t first = 0, last = 0;  // nodes; a surviving buffer's last node is the program's last node
  uint64_t offset = 0;           // in bytes; where the worker's arena layout (ir/arena.h) would place it
  uint64_t bytes = 0;
};

struct MemoryChart {
  bool sizes_known = false;     // otherwise every buffer counts as one byte
  std::vector<MemoryBar> bars;  // in the order of their first nodes
  std::vector<uint64_t> live;   // bytes in fresh buffers while each node runs
  uint64_t height = 0;          // the end of the highest bar, in bytes
  uint32_t peak = 0;            // the node at which `live` is largest
};

// `values`: the symbols' values in one run (ir::evaluate), or empty if no run is known. Memory that one buffer takes
// over from another counts once.
MemoryChart memory_chart(const ir::Graph& graph, const std::vector<int64_t>& values);

// The bytes that a node accesses: the sum of its distinct views' sizes. `values` as above, not empty.
uint64_t bytes_of_node(const ir::Graph& graph, uint32_t node, const std::vector<int64_t>& values);

}  // namespace torch_remote::tools
