#include "tools/reduce/operands.h"

#include <set>

namespace torch_remote::tools::reduce {
namespace {

bool is_list(const ir::Arg& arg) { return arg.tag == ir::ArgTag::kList && !arg.items.empty(); }

void drop(ir::Arg& arg, size_t begin, size_t end) {
  if (!is_list(arg)) return;
  arg.items.erase(arg.items.begin() + static_cast<ptrdiff_t>(begin), arg.items.begin() + static_cast<ptrdiff_t>(end));
}

}  // namespace

size_t list_length(const ir::Graph& graph, const ir::Node& node) {
  if (ir::op_desc(node.opcode).family != ir::Family::kMultiTensor) return 0;
  size_t length = 0;
  for (const auto* args : {&node.args, &node.results}) {
    for (const ir::Arg& arg : *args) {
      if (!is_list(arg)) continue;
      if (length != 0 && length != arg.items.size()) return 0;
      length = arg.items.size();
    }
  }
  return length;
}

bool without_operands(const RunCase& run, uint32_t node, size_t begin, size_t end, RunCase* changed) {
  const ir::Graph& graph = run.graph;
  // Only this node can make these buffers. They are needed if they survive or another node uses them.
  std::set<uint32_t> made;
  for (const ir::Arg& result : graph.nodes[node].results) {
    for (size_t i = begin; i < end && is_list(result); ++i) {
      if (result.items[i].tag == ir::ArgTag::kView) made.insert(graph.views[result.items[i].a].buffer);
    }
  }
  bool needed = false;
  for (const uint32_t buffer : made) needed |= graph.buffers[buffer].survives;
  for (uint32_t n = 0; n < graph.nodes.size() && !needed; ++n) {
    if (n == node) continue;
    ir::for_each_view(graph.nodes[n], [&](uint32_t view, bool) { needed |= made.contains(graph.views[view].buffer); });
  }
  if (needed) return false;
  *changed = run;
  ir::Node& shorter = changed->graph.nodes[node];
  for (ir::Arg& arg : shorter.args) drop(arg, begin, end);
  for (ir::Arg& result : shorter.results) drop(result, begin, end);
  return true;
}

}  // namespace torch_remote::tools::reduce
