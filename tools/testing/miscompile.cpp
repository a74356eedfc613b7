#include "tools/testing/miscompile.h"

#include <utility>
#include <vector>

namespace torch_remote::tools::testing {
namespace {

Status miscompile(ir::Graph& graph) {
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

}  // namespace

std::span<const passes::Pass> miscompiling_pipeline() {
  static const std::vector<passes::Pass> pipeline = [] {
    std::vector<passes::Pass> passes;
    for (const passes::Pass& pass : passes::pipeline()) {
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
