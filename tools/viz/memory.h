#pragma once

#include <cstdint>
#include <vector>

#include "ir/graph.h"

// The memory that a program makes, over its nodes: when each fresh buffer is there, and where it could lie.
namespace torch_remote::tools {

struct MemoryBar {
  uint32_t buffer = 0;
  uint32_t first = 0, last = 0;  // nodes; that of one that survives ends with the last node
  uint64_t offset = 0;           // where the worker's placement would put it; bytes
  uint64_t bytes = 0;
};

struct MemoryChart {
  bool sizes_known = false;     // else every buffer counts as one byte
  std::vector<MemoryBar> bars;  // in the order of their first nodes
  std::vector<uint64_t> live;   // bytes in fresh buffers while each node runs
  uint64_t height = 0;          // bytes: above the highest bar
  uint32_t peak = 0;            // the node where `live` is largest
};

// `values`: of the graph's symbols for one run (ir::evaluate), or empty if no run is known. Memory that one buffer
// takes over from another counts once.
MemoryChart memory_chart(const ir::Graph& graph, const std::vector<int64_t>& values);

// Bytes that a node works on: the sizes of its views, each once. `values` as above, not empty.
uint64_t bytes_of_node(const ir::Graph& graph, uint32_t node, const std::vector<int64_t>& values);

}  // namespace torch_remote::tools
