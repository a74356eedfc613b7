#include <vector>

#include "passes/pass.h"
#include "passes/rewrite.h"

// plan: decides for each buffer whose memory it may take over.
//
// A buffer may take over another one's memory if the other one does not survive. The node that fills the buffer must be
// the last to touch the other one, and may work in place (ir::may_work_in_place). The run checks whether the sizes fit.
namespace torch_remote::passes {
namespace {

using ir::Arg;
using ir::ArgTag;
using ir::Graph;
using ir::Node;

class Planner {
 public:
  explicit Planner(Graph& graph) : graph_(graph), lifetimes_(ir::find_lifetimes(graph)), taken_(graph.buffers.size()) {}

  void run() {
    graph_.drop_plan();
    for (uint32_t i = 0; i < graph_.nodes.size(); ++i) {
      const Node& node = graph_.nodes[i];
      for (const Arg& result : node.results) {
        if (result.tag == ArgTag::kView) reuse_memory(i, graph_.views[result.a].buffer);
      }
      if (ir::fills_first_argument(ir::op_desc(node.opcode)) && node.args[0].tag == ArgTag::kView) {
        const uint32_t filled = graph_.views[node.args[0].a].buffer;
        if (graph_.buffers[filled].written_once) reuse_memory(i, filled);
      }
    }
  }

 private:
  // Finds an operand of the node whose memory may be taken over by the buffer that the node creates.
  void reuse_memory(uint32_t index, uint32_t made) {
    if (lifetimes_[made].first != index) return;
    const Node& node = graph_.nodes[index];
    for (const Arg& arg : node.args) {
      if (arg.tag != ArgTag::kView) continue;
      const uint32_t source = graph_.views[arg.a].buffer;
      if (!free_after(index, source) || !ir::may_work_in_place(graph_, node, source, made)) continue;
      graph_.buffers[made].may_reuse = source;
      taken_[source] = true;
      return;
    }
  }

  bool free_after(uint32_t index, uint32_t buffer) const {
    const ir::Lifetime& life = lifetimes_[buffer];
    return !graph_.buffers[buffer].survives && !taken_[buffer] && life.last == index && life.first != index;
  }

  Graph& graph_;
  const std::vector<ir::Lifetime> lifetimes_;
  std::vector<bool> taken_;
};

}  // namespace

Status plan(Graph& graph, const PassContext&) {
  Planner(graph).run();
  return {};
}

}  // namespace torch_remote::passes
