#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "ir/graph.h"

// Makes the intermediate results of a graph's nodes visible.
namespace torch_remote::tools {

// The views that a node writes, in the order of for_each_view, without dynamic ones.
std::vector<uint32_t> written_views(const ir::Graph& graph, const ir::Node& node);

struct Snapshot {
  uint32_t node;  // node of the graph without snapshots
  uint32_t view;  // view of the graph without snapshots
};

// The graph with contiguous copies of the views that these nodes (in ascending order) write, taken just after each
// node. Snapshot k is the k-th surviving fresh buffer after those of `graph` itself. The result has no memory plan.
ir::Graph with_snapshots(const ir::Graph& graph, std::span<const uint32_t> nodes, std::vector<Snapshot>* snapshots);

// The views that a node reads, in the order of for_each_view, without dynamic ones.
std::vector<uint32_t> read_views(const ir::Graph& graph, const ir::Node& node);
// The graph with copies of the views that this node reads, taken just before it runs.
ir::Graph with_operand_snapshots(const ir::Graph& graph, uint32_t node, std::vector<Snapshot>* snapshots);

// Bytes of a view's elements; `values`: the result of ir::evaluate.
uint64_t view_bytes(const ir::View& view, std::span<const int64_t> values);

// For example "aten::add.Tensor(f32[8, 32]{32, 1}, f32[32]{1}, alpha=1)": the node with its operands in this run.
std::string describe(const ir::Graph& graph, const ir::Node& node, std::span<const int64_t> values);

// The user's source line of a node, or "".
std::string line_of(const ir::Graph& graph, const ir::Node& node);

}  // namespace torch_remote::tools
