#include <cstdint>
#include <utility>
#include <vector>

#include "ir/ops/op_table_generated.h"
#include "passes/pass.h"
#include "passes/rewrite.h"

// accumulate: sums of slice gradients add each slice at its position.
//
// A loop over x[:, t] has, for each t, a gradient of x that is zero except for one slice. Autograd creates all of these
// gradients and adds them up, in time quadratic in the length of the loop. This pass turns the adds into
// remote::add_select_backward and remote::add_slice_backward, which add one slice to the sum so far. The memory plan
// lets them work in the sum's memory.
//
// A sum is a chain of aten::add.Tensor over its first operand. Its second operands are slice gradients that nothing
// else reads, or other tensors. Small sums and sums of few slices are left to `fuse`: one kernel computes them in one
// pass over the result.
//
// Adding a zero turns a negative zero into a positive one; a slice op leaves it. So an add is changed only if its first
// operand is a slice gradient, or a sum that has one. These have no negative zeros outside of their slices.
namespace torch_remote::passes {
namespace {

using ir::Arg;
using ir::ArgTag;
using ir::Graph;
using ir::kNoNode;
using ir::Node;
using ir::Opcode;
using ir::View;

constexpr uint32_t kMinSlices = 6;         // the fewest slices of a sum that is changed
constexpr int64_t kMinElements = 1 << 15;  // the fewest elements of such a sum, in the run that is known

class Accumulator {
 public:
  // `values`: the values of the symbols; empty if unknown.
  Accumulator(Graph& graph, std::vector<int64_t> values)
      : graph_(graph),
        constant_(constant_buffers(graph)),
        values_(std::move(values)),
        made_by_(graph.buffers.size(), kNoNode) {
    std::vector<uint32_t> last(graph.buffers.size(), kNoNode);
    uses_.resize(graph.buffers.size());
    for (uint32_t i = 0; i < graph.nodes.size(); ++i) {
      ir::for_each_view(graph.nodes[i], [&](uint32_t view, bool writes) {
        const uint32_t buffer = graph.views[view].buffer;
        if (writes && graph.buffers[buffer].written_once) made_by_[buffer] = i;
        uses_[buffer] += last[buffer] != i;
        last[buffer] = i;
      });
    }
  }

  void run() {
    sums_.resize(graph_.nodes.size());
    for (uint32_t i = 0; i < graph_.nodes.size(); ++i) inspect(i);
    for (uint32_t i = static_cast<uint32_t>(graph_.nodes.size()); i-- > 0;) {
      Sum& sum = sums_[i];
      if (sum.next != kNoNode) sum.slices = sums_[sum.next].slices;  // the number of the whole chain
      if (sum.slices >= kMinSlices && sum.slice != kNoNode && sum.extends_slice_sum) convert(i);
    }
  }

 private:
  // An add in a chain.
  struct Sum {
    uint32_t slices = 0;             // added up to this add
    uint32_t slice = kNoNode;        // the node whose gradient this add adds
    uint32_t next = kNoNode;         // the add whose first operand is this add's result
    bool extends_slice_sum = false;  // the first operand is a slice, or a sum that has slices
  };

  static bool is_slice(const Node& node) {
    return node.opcode == ir::ops::aten_select_backward || node.opcode == ir::ops::aten_slice_backward;
  }

  // The node whose result, as a whole, the argument is; kNoNode if there is none.
  uint32_t writer_of(const Arg& arg) const {
    if (arg.tag != ArgTag::kView) return kNoNode;
    const View& view = graph_.views[arg.a];
    const uint32_t node = made_by_[view.buffer];
    if (node == kNoNode || graph_.nodes[node].results.size() != 1) return kNoNode;
    const Arg& result = graph_.nodes[node].results[0];
    return result.tag == ArgTag::kView && ir::same_geometry(graph_.views[result.a], view) ? node : kNoNode;
  }

  // Whether only the node that adds it reads it.
  bool read_once(const Arg& arg) const {
    const uint32_t buffer = graph_.views[arg.a].buffer;
    return uses_[buffer] == 2 && !graph_.buffers[buffer].survives;
  }

  bool is_added_slice(const Arg& arg, const View& result) const {
    const uint32_t node = writer_of(arg);
    if (node == kNoNode || !is_slice(graph_.nodes[node]) || !read_once(arg)) return false;
    const Arg& gradient = graph_.nodes[node].args[0];
    return gradient.tag == ArgTag::kView && constant_[graph_.views[gradient.a].buffer] &&
           graph_.views[gradient.a].dtype == result.dtype && graph_.views[arg.a].dtype == result.dtype &&
           graph_.views[arg.a].sizes == result.sizes;
  }

  bool is_small(const View& view) const {
    if (values_.empty()) return false;
    int64_t elements = 1;
    for (const ir::Sym size : view.sizes) elements *= values_[size];
    return elements < kMinElements;
  }

  void inspect(uint32_t index) {
    const Node& node = graph_.nodes[index];
    if (node.opcode != ir::ops::aten_add_Tensor || node.results.size() != 1 || node.results[0].tag != ArgTag::kView ||
        node.args[0].tag != ArgTag::kView) {
      return;
    }
    const View& result = graph_.views[node.results[0].a];
    const View& self = graph_.views[node.args[0].a];
    if (self.dtype != result.dtype || self.sizes != result.sizes || is_small(result)) return;
    Sum& sum = sums_[index];
    const uint32_t base = writer_of(node.args[0]);
    if (base != kNoNode && read_once(node.args[0])) {
      if (is_slice(graph_.nodes[base])) {
        sum.extends_slice_sum = true;
        sum.slices = 1;
      } else if (sums_[base].slices != 0) {
        sum.extends_slice_sum = true;
        sum.slices = sums_[base].slices;
        sums_[base].next = index;
      }
    }
    if (is_added_slice(node.args[1], result)) {
      sum.slice = writer_of(node.args[1]);
      ++sum.slices;
    }
  }

  // The first slice and the dense operands keep their adds.
  void convert(uint32_t index) {
    Node& node = graph_.nodes[index];
    const Node& slice = graph_.nodes[sums_[index].slice];
    const bool selects = slice.opcode == ir::ops::aten_select_backward;
    std::vector<Arg> args = {node.args[0], slice.args[0]};
    args.insert(args.end(), slice.args.begin() + 2, slice.args.end());  // without the sizes
    args.push_back(node.args[2]);
    node.opcode = selects ? ir::ops::remote_add_select_backward : ir::ops::remote_add_slice_backward;
    node.args = std::move(args);
  }

  Graph& graph_;
  const std::vector<bool> constant_;
  const std::vector<int64_t> values_;
  std::vector<uint32_t> made_by_;  // for each written_once buffer: the node that writes it
  std::vector<uint32_t> uses_;     // for each buffer: the number of nodes that use it
  std::vector<Sum> sums_;          // for each node
};

}  // namespace

Status accumulate(Graph& graph, const PassContext& context) {
  graph.drop_groups();
  if (!context.fusion || !context.worker.compiles_for_cpu()) return {};
  std::vector<int64_t> values;
  if (context.sample.size() == graph.params) {
    if (Status status = ir::evaluate(graph, context.sample.data(), &values); !status.ok()) return status;
  }
  Accumulator(graph, std::move(values)).run();
  return {};
}

}  // namespace torch_remote::passes
