#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "ir/graph.h"

// What a graph's nodes compute, one by one.
namespace torch_remote::tools {

// The views that a node writes, in the order of for_each_view. Dynamic ones are left out.
std::vector<uint32_t> written_views(const ir::Graph& graph, const ir::Node& node);

struct Snapshot {
  uint32_t node;  // of the graph without snapshots
  uint32_t view;  // likewise
};

// The graph with packed copies of what these nodes (in ascending order) write, taken when they have run. The k-th
// snapshot is the buffer that survives k-th after those of `graph` itself. It has no memory plan.
ir::Graph with_snapshots(const ir::Graph& graph, std::span<const uint32_t> nodes, std::vector<Snapshot>* snapshots);

// The views that a node reads, in the order of for_each_view. Dynamic ones are left out.
std::vector<uint32_t> read_views(const ir::Graph& graph, const ir::Node& node);
// Likewise with copies of what this node reads, taken just before it runs.
ir::Graph with_operands(const ir::Graph& graph, uint32_t node, std::vector<Snapshot>* snapshots);

// Bytes of a view's elements; `values` are evaluate's.
uint64_t view_bytes(const ir::View& view, std::span<const int64_t> values);

// "aten::add.Tensor(f32[8, 32]{32, 1}, f32[32]{1}, alpha=1)": the node with its operands as they are in this run.
std::string describe(const ir::Graph& graph, const ir::Node& node, std::span<const int64_t> values);

// The user's line of a node, or "".
std::string line_of(const ir::Graph& graph, const ir::Node& node);

}  // namespace torch_remote::tools
