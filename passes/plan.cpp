#include <vector>

#include "passes/pass.h"
#include "passes/rewrite.h"

// plan: says for each buffer which nodes touch it first and last, and whose memory it may take over.
//
// A buffer may take over another one's memory if the node that fills it is the last to touch the other one, computes
// each element from the elements at the same place (a pointwise op, or a copy), sees the other one through the very
// same view only, and the other one does not survive. Whether the sizes fit is the run's business.
namespace torch_remote::passes {
namespace {

using ir::Arg;
using ir::ArgTag;
using ir::Graph;
using ir::kNoBuffer;
using ir::kNoNode;
using ir::Node;
using ir::View;

class Planner {
 public:
  explicit Planner(Graph& graph) : graph_(graph) {}

  void run() {
    graph_.plan.assign(graph_.buffers.size(), {kNoNode, kNoNode, kNoBuffer});
    for (uint32_t i = 0; i < graph_.nodes.size(); ++i) {
      ir::for_each_view(graph_.nodes[i], [&](uint32_t view, bool) {
        Graph::Lifetime& life = graph_.plan[graph_.views[view].buffer];
        if (life.first == kNoNode) life.first = i;
        life.last = i;
      });
    }
    taken_.resize(graph_.buffers.size());
    for (uint32_t i = 0; i < graph_.nodes.size(); ++i) reuse(i);
  }

 private:
  void reuse(uint32_t index) {
    const Node& node = graph_.nodes[index];
    const ir::OpDesc& desc = ir::op_desc(node.opcode);
    const bool copies = fills_first_argument(desc);
    if (desc.family != ir::Family::kPointwise && !copies) return;
    for (const Arg& result : node.results) {
      if (result.tag == ArgTag::kView) take_over(index, result.a);
    }
    if (copies && node.args[0].tag == ArgTag::kView && graph_.buffers[graph_.views[node.args[0].a].buffer].ssa) {
      take_over(index, node.args[0].a);
    }
  }

  // Finds an operand of the node whose memory the buffer of `created` may have.
  void take_over(uint32_t index, uint32_t created) {
    const View& target = graph_.views[created];
    if (target.dynamic || graph_.plan[target.buffer].first != index) return;
    const Node& node = graph_.nodes[index];
    for (const Arg& arg : node.args) {
      if (arg.tag != ArgTag::kView) continue;
      const View& source = graph_.views[arg.a];
      if (source.buffer == target.buffer || !same_geometry(source, target) || !free_after(index, source.buffer))
        continue;
      if (!seen_only_as(node, arg.a)) continue;
      graph_.plan[target.buffer].reuses = source.buffer;
      taken_[source.buffer] = true;
      return;
    }
  }

  bool free_after(uint32_t index, uint32_t buffer) const {
    const Graph::Lifetime& life = graph_.plan[buffer];
    return !graph_.buffers[buffer].survives && !taken_[buffer] && life.last == index && life.first != index;
  }

  bool seen_only_as(const Node& node, uint32_t wanted) const {
    bool only = true;
    ir::for_each_view(node, [&](uint32_t view, bool writes) {
      const View& other = graph_.views[view];
      if (other.buffer != graph_.views[wanted].buffer) return;
      only &= !writes && (view == wanted || same_geometry(other, graph_.views[wanted]));
    });
    return only;
  }

  Graph& graph_;
  std::vector<bool> taken_;
};

}  // namespace

Status plan(Graph& graph, const PassContext&) {
  Planner(graph).run();
  return {};
}

}  // namespace torch_remote::passes
