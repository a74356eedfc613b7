#include "tools/testing/miscompile.h"

#include <utility>
#include <vector>

namespace torch_remote::tools::testing {
namespace {

Status miscompile(ir::Graph& graph, const passes::PassContext&) {
  const ir::Opcode sub = ir::find_op("aten::sub.Tensor"), mul = ir::find_op("aten::mul.Tensor");
  std::vector<bool> multiplied(graph.buffers.size());
  for (const ir::Node& node : graph.nodes) {
    if (node.opcode != mul) continue;
    for (const ir::Arg& arg : node.args) {
      if (arg.tag == ir::ArgTag::kView) multiplied[graph.views[arg.a].buffer] = true;
    }
  }
  for (ir::Node& node : graph.nodes) {
    if (node.opcode != sub || node.args[0].tag != ir::ArgTag::kView || node.args[1].tag != ir::ArgTag::kView) continue;
    const ir::Arg& result = node.results[0];
    if (result.tag != ir::ArgTag::kView || !multiplied[graph.views[result.a].buffer]) continue;
    std::swap(node.args[0], node.args[1]);
  }
  return {};
}

// The view of the node's only result, if that is a temporary; null otherwise.
const ir::View* temporary(const ir::Graph& graph, const ir::Node& node, ir::Opcode op) {
  if (node.opcode != op || node.results[0].tag != ir::ArgTag::kView) return nullptr;
  const ir::View& view = graph.views[node.results[0].a];
  const ir::Buffer& buffer = graph.buffers[view.buffer];
  return buffer.kind == ir::BufferKind::kFresh && !buffer.survives ? &view : nullptr;
}

// The verifier refuses a graph or plan in which two temporaries share memory while both are needed. So this pass
// produces the effect of such a plan: when the second temporary is computed, the first one is overwritten with it.
Status share_memory(ir::Graph& graph, const passes::PassContext&) {
  const ir::Opcode sigmoid = ir::find_op("aten::sigmoid"), tanh = ir::find_op("aten::tanh");
  std::vector<uint32_t> last(graph.buffers.size());
  for (uint32_t n = 0; n < graph.nodes.size(); ++n) {
    ir::for_each_view(graph.nodes[n], [&](uint32_t view, bool) { last[graph.views[view].buffer] = n; });
  }
  std::vector<ir::Node> nodes;
  for (uint32_t n = 0; n < graph.nodes.size(); ++n) {
    nodes.push_back(graph.nodes[n]);
    const ir::View* target = temporary(graph, graph.nodes[n], tanh);
    for (uint32_t m = 0; m < n && target; ++m) {
      const ir::View* source = temporary(graph, graph.nodes[m], sigmoid);
      if (!source || last[source->buffer] <= n || source->sizes != target->sizes) continue;
      ir::Node copy;
      copy.opcode = ir::find_op("aten::copy_");
      copy.record = graph.nodes[n].record;
      copy.args = {graph.nodes[m].results[0], graph.nodes[n].results[0], {}};
      copy.results.resize(1);
      nodes.push_back(std::move(copy));
      graph.buffers[source->buffer].written_once = false;
      break;
    }
  }
  graph.nodes = std::move(nodes);
  return {};
}

}  // namespace

std::span<const passes::Pass> miscompiling_pipeline() {
  static const std::vector<passes::Pass> pipeline = [] {
    std::vector<passes::Pass> passes;
    for (const passes::Pass& pass : passes::pipeline()) {
      if (pass.name == "plan") {
        passes.push_back(
            {"test-share-memory", "As if two temporaries that live at the same time shared memory.", share_memory});
      }
      passes.push_back(pass);
      if (pass.name == "canonicalize") {
        passes.push_back({"test-miscompile", "Exchanges the operands of a difference that is multiplied.", miscompile});
      }
    }
    return passes;
  }();
  return pipeline;
}

}  // namespace torch_remote::tools::testing
