#include <limits>
#include <optional>
#include <vector>

#include "passes/pass.h"
#include "passes/rewrite.h"
#include "passes/shape_facts.h"

// group: says which nodes the worker may do as a whole, by one kernel.
//
// A node is a group of its own if the worker does groups of its kind and computes in all of its dtypes. A node that
// says something to the client (a dynamic result, a number) is in none. A buffer that only nodes of one group use, and
// that does not survive, is marked in_group.
namespace torch_remote::passes {
namespace {

using ir::Graph;
using ir::Group;
using ir::GroupKind;
using ir::kNoNode;
using ir::Node;

class Grouper {
 public:
  Grouper(Graph& graph, const PassContext& context) : graph_(graph), context_(context) {}

  void run() {
    graph_.drop_groups();
    if (!context_.fusion || context_.worker.group_kinds == 0) return;
    const int64_t limit = context_.option("group.limit", std::numeric_limits<int64_t>::max());
    for (uint32_t i = 0; i < graph_.nodes.size(); ++i) {
      const std::optional<GroupKind> kind = kind_of(graph_.nodes[i]);
      if (!kind || !context_.worker.does(*kind) || static_cast<int64_t>(graph_.groups.size()) >= limit) continue;
      graph_.groups.push_back({i, i, *kind, hints_of(graph_.nodes[i])});
    }
    mark_buffers();
  }

 private:
  std::optional<GroupKind> kind_of(const Node& node) const {
    const ir::OpDesc& desc = ir::op_desc(node.opcode);
    if (!only_visible_effects(desc)) return std::nullopt;
    bool dtypes = true;
    ir::for_each_view(node, [&](uint32_t view, bool) {
      dtypes &= !graph_.views[view].dynamic && context_.worker.does(graph_.views[view].dtype);
    });
    if (!dtypes) return std::nullopt;
    switch (desc.family) {
      case ir::Family::kPointwise:
        return GroupKind::kPointwise;
      case ir::Family::kReduction:
        return GroupKind::kReduce;
      case ir::Family::kNorm:
        return GroupKind::kRowwise;
      case ir::Family::kCopy:
        return GroupKind::kTranspose;
      case ir::Family::kMultiTensor:
        return GroupKind::kMultiTensor;
      case ir::Family::kMatmul:
        return GroupKind::kMatmulEpilogue;
      case ir::Family::kConv:
        return GroupKind::kConvEpilogue;
      case ir::Family::kAttention:
        return GroupKind::kAttention;
      default:
        return std::nullopt;
    }
  }

  uint8_t hints_of(const Node& node) const {
    bool contiguous = true, aligned = true;
    ir::for_each_view(node, [&](uint32_t index, bool) {
      const ir::View& view = graph_.views[index];
      int64_t offset = 0;
      contiguous &= is_contiguous(graph_, view);
      aligned &= graph_.is_constant(view.offset, &offset) &&
                 offset * static_cast<int64_t>(ir::item_size(view.dtype)) % 16 == 0;
    });
    return static_cast<uint8_t>((contiguous ? ir::kGroupContiguous : 0) | (aligned ? ir::kGroupAligned : 0));
  }

  void mark_buffers() {
    constexpr uint32_t kSeveral = kNoNode - 1;
    std::vector<uint32_t> user(graph_.buffers.size(), kNoNode);  // a group; kSeveral: others, too
    size_t next = 0;
    for (uint32_t i = 0; i < graph_.nodes.size(); ++i) {
      while (next < graph_.groups.size() && graph_.groups[next].last < i) ++next;
      const bool grouped = next < graph_.groups.size() && graph_.groups[next].first <= i;
      const uint32_t group = grouped ? static_cast<uint32_t>(next) : kSeveral;
      ir::for_each_view(graph_.nodes[i], [&](uint32_t view, bool) {
        uint32_t& known = user[graph_.views[view].buffer];
        known = known == kNoNode || known == group ? group : kSeveral;
      });
    }
    for (size_t b = 0; b < user.size(); ++b) {
      ir::Buffer& buffer = graph_.buffers[b];
      buffer.in_group = user[b] < kSeveral && buffer.kind == ir::BufferKind::kFresh && !buffer.survives;
    }
  }

  Graph& graph_;
  const PassContext& context_;
};

}  // namespace

Status group(Graph& graph, const PassContext& context) {
  Grouper(graph, context).run();
  return {};
}

}  // namespace torch_remote::passes
