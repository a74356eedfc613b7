#pragma once

#include <cstdint>
#include <vector>

#include "ir/analysis.h"
#include "ir/graph.h"

// Functions with which several passes read and change a graph.
namespace torch_remote::passes {

// Whether the op's only effects are its results and the writes that its schema or the table states, and the client does
// not wait for its results. Such an op may be removed if its results and writes are unused. False for ops outside the
// table that are not pure.
bool has_only_declared_effects(const ir::OpDesc& desc);

// Returns which buffers no node writes after their first use: reads at any two nodes give the same value. These are the
// written_once buffers, and the inputs that this graph only reads.
std::vector<bool> constant_buffers(const ir::Graph& graph);

// Calls f(uint32_t& view, bool writes) like ir::for_each_view, to replace views.
template <typename F>
void for_each_view_slot(ir::Node& node, F&& f);

// -- implementation --------------------------------------------------------------------------------------------------

namespace internal {
template <typename F>
void visit_view_slots(ir::Arg& arg, bool writes, F& f) {
  if (arg.tag == ir::ArgTag::kView) f(arg.a, writes);
  for (ir::Arg& item : arg.items) visit_view_slots(item, writes, f);
}
}  // namespace internal

template <typename F>
void for_each_view_slot(ir::Node& node, F&& f) {
  const ir::OpDesc& desc = ir::op_desc(node.opcode);
  for (size_t i = 0; i < node.args.size(); ++i) internal::visit_view_slots(node.args[i], desc.args[i].writes, f);
  for (ir::Arg& result : node.results) internal::visit_view_slots(result, true, f);
}

// Hash of a list of words, for tables of nodes and layouts.
struct WordsHash {
  size_t operator()(const std::vector<uint32_t>& words) const {
    uint64_t hash = words.size();
    for (const uint32_t word : words) {
      hash = (hash ^ word) * 0x9E3779B97F4A7C15;
      hash ^= hash >> 29;
    }
    return hash;
  }
};

}  // namespace torch_remote::passes
