#include "ir/analysis.h"

#include <algorithm>

namespace torch_remote::ir {

std::optional<size_t> find_argument(const OpDesc& desc, std::string_view name) {
  const auto found = std::ranges::find(desc.args, name, &ArgDesc::name);
  if (found == desc.args.end()) return std::nullopt;
  return static_cast<size_t>(found - desc.args.begin());
}

const Arg* find_argument(const Node& node, std::string_view name) {
  const std::optional<size_t> found = find_argument(op_desc(node.opcode), name);
  return found ? &node.args[*found] : nullptr;
}

const Arg* find_result(const Graph& graph, const Node& node, size_t i) {
  if (i >= node.results.size()) return nullptr;
  const Arg& made = node.results[i];
  const int8_t alias = op_desc(node.opcode).results[i].alias;
  const Arg& arg = made.tag == ArgTag::kView || alias < 0 ? made : node.args[static_cast<uint8_t>(alias)];
  return arg.tag == ArgTag::kView && !graph.views[arg.a].dynamic ? &arg : nullptr;
}

uint32_t count_symbols(const Arg& arg) {
  switch (arg.tag) {
    case ArgTag::kInt:
    case ArgTag::kFloat:
    case ArgTag::kBool:
      return 1;
    case ArgTag::kScalarTensor:
      return is_complex(static_cast<DType>(arg.b & 0xFF)) ? 2 : 1;
    case ArgTag::kComplex:
    case ArgTag::kGenerator:
      return 2;
    default:
      return 0;
  }
}

std::vector<Lifetime> find_lifetimes(const Graph& graph) {
  std::vector<Lifetime> lifetimes(graph.buffers.size());
  for (uint32_t n = 0; n < graph.nodes.size(); ++n) {
    for_each_view(graph.nodes[n], [&](uint32_t view, bool) {
      Lifetime& lifetime = lifetimes[graph.views[view].buffer];
      if (lifetime.first == kNoNode) lifetime.first = n;
      lifetime.last = n;
    });
  }
  return lifetimes;
}

std::vector<bool> written_buffers(const Graph& graph) {
  std::vector<bool> written(graph.buffers.size());
  for (const Node& node : graph.nodes) {
    for_each_view(node, [&](uint32_t view, bool writes) {
      if (writes) written[graph.views[view].buffer] = true;
    });
  }
  return written;
}

bool same_geometry(const View& a, const View& b) {
  return !a.dynamic && !b.dynamic && a.dtype == b.dtype && a.offset == b.offset && a.sizes == b.sizes &&
         a.strides == b.strides;
}

bool fills_first_argument(const OpDesc& desc) {
  return !desc.args.empty() && desc.args[0].overwrites && desc.args[0].kind == ArgKind::kTensor &&
         (desc.flags & (kOpInPlace | kOpRandom)) == kOpInPlace;
}

// True if a kernel reads an element of each operand before it writes the result's element there, and never again.
// Pointwise ops without expression and shape rule are not such: `glu_backward` reads an operand twice, and `frexp` may
// make its two results one after the other.
static bool works_element_by_element(const OpDesc& desc) {
  return desc.family == Family::kPointwise && (!desc.expression.empty() || desc.shape_rule != ShapeRule::kNone);
}

bool may_work_in_place(const Graph& graph, const Node& node, uint32_t from, uint32_t to) {
  const OpDesc& desc = op_desc(node.opcode);
  if (from == to) return false;
  if (desc.flags & kOpMayReuseFirst) {
    if (node.args[0].tag != ArgTag::kView || graph.views[node.args[0].a].buffer != from) return false;
  } else if (!works_element_by_element(desc) && !fills_first_argument(desc)) {
    return false;
  }
  const View* source = nullptr;
  const View* target = nullptr;
  bool may = true;
  for_each_access(node, [&](uint32_t index, Access access) {
    const View& view = graph.views[index];
    if (view.buffer != from && view.buffer != to) return;
    const bool reads = view.buffer == from;
    const View*& known = reads ? source : target;
    if (known == nullptr) known = &view;
    may = may && same_geometry(view, *known) &&
          (reads ? access == Access::kReads : access == Access::kCreates || access == Access::kOverwrites);
  });
  return may && source != nullptr && target != nullptr && same_geometry(*source, *target);
}

}  // namespace torch_remote::ir
