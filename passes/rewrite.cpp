#include "passes/rewrite.h"

namespace torch_remote::passes {

using ir::Graph;
using ir::OpDesc;

bool has_only_declared_effects(const OpDesc& desc) {
  constexpr uint32_t kReadByClient = ir::kOpHostResult | ir::kOpDynamicShape;
  if ((desc.flags & kReadByClient) != 0) return false;  // the client waits for its result
  // For an op of the table, the table states what it writes beyond its schema.
  if ((desc.flags & ir::kOpHiddenMutation) != 0 && desc.opcode >= ir::kFirstOpaque) return false;
  if ((desc.flags & ir::kOpPure) != 0) return true;
  if (desc.opcode >= ir::kFirstOpaque) return false;
  // An op without any result or write has another effect (an assertion).
  bool writes = !desc.results.empty();
  for (const ir::ArgDesc& arg : desc.args) writes |= arg.writes;
  return writes;
}

std::vector<bool> constant_buffers(const Graph& graph) {
  std::vector<bool> constant(graph.buffers.size());
  for (size_t i = 0; i < constant.size(); ++i) {
    constant[i] = graph.buffers[i].written_once || graph.buffers[i].kind == ir::BufferKind::kInput;
  }
  for (const ir::Node& node : graph.nodes) {
    ir::for_each_view(node, [&](uint32_t view, bool writes) {
      const uint32_t buffer = graph.views[view].buffer;
      if (writes && !graph.buffers[buffer].written_once) constant[buffer] = false;
    });
  }
  return constant;
}

}  // namespace torch_remote::passes
