#include "passes/shape_facts.h"

#include "ir/analysis.h"
#include "ir/ops/op_table_generated.h"

namespace torch_remote::passes {
namespace {

using ir::Arg;
using ir::ArgTag;
using ir::Graph;
using ir::Node;
using ir::OpDesc;
using ir::ShapeRule;
using ir::Sym;
using ir::View;

const View* view_of(const Graph& graph, const Arg& arg) {
  if (arg.tag != ArgTag::kView || graph.views[arg.a].dynamic) return nullptr;
  return &graph.views[arg.a];
}

const View* operand(const Graph& graph, const Node& node, size_t index) {
  return index < node.args.size() ? view_of(graph, node.args[index]) : nullptr;
}

const View* result(const Graph& graph, const Node& node, size_t index) {
  return index < node.results.size() ? view_of(graph, node.results[index]) : nullptr;
}

bool is_one(const Graph& graph, Sym size) {
  int64_t value = 0;
  return graph.is_constant(size, &value) && value == 1;
}

class Collector {
 public:
  Collector(const Graph& graph, const Node& node, EqualSizes& out)
      : graph_(graph), node_(node), desc_(ir::op_desc(node.opcode)), out_(out) {}

  void run() {
    switch (desc_.shape_rule) {
      case ShapeRule::kPointwise:
      case ShapeRule::kComparison:
        return broadcast(result(graph_, node_, 0), 0);
      case ShapeRule::kInPlace:
        // The written operand has the result's sizes.
        if ((desc_.flags & ir::kOpInPlace) == 0) return;
        if (desc_.family == ir::Family::kPointwise || desc_.opcode == ir::ops::aten_copy_) {
          return broadcast(operand(graph_, node_, 0), 1);
        }
        return;
      case ShapeRule::kLike:
      case ShapeRule::kSoftmax:
      case ShapeRule::kCumulative:
      case ShapeRule::kLayerNorm:
      case ShapeRule::kBatchNorm:
      case ShapeRule::kGroupNorm:
        return same(operand(graph_, node_, 0), result(graph_, node_, 0));
      case ShapeRule::kMatmul:
      case ShapeRule::kBmm:
        return matmul(operand(graph_, node_, 0), operand(graph_, node_, 1));
      case ShapeRule::kAddmm:
        return matmul(operand(graph_, node_, 1), operand(graph_, node_, 2));
      case ShapeRule::kEmbedding:
        return embedding();
      case ShapeRule::kReduction:
        return reduction();
      case ShapeRule::kForeach:
        return foreach ();
      default:
        return;
    }
  }

 private:
  void equal(Sym a, Sym b) { out_.emplace_back(a, b); }

  void same(const View* a, const View* b) {
    if (a == nullptr || b == nullptr || a->sizes.size() != b->sizes.size()) return;
    for (size_t d = 0; d < a->sizes.size(); ++d) equal(a->sizes[d], b->sizes[d]);
  }

  // A size that is not the constant 1 is never 1 (ir::View::sizes), so it equals the result's size.
  void broadcast(const View* target, size_t first) {
    if (target == nullptr) return;
    const size_t rank = target->sizes.size();
    for (size_t i = first; i < node_.args.size(); ++i) {
      const View* source = operand(graph_, node_, i);
      if (source != nullptr && source->sizes.size() > rank) return;
    }
    for (size_t i = first; i < node_.args.size(); ++i) {
      const View* source = operand(graph_, node_, i);
      if (source != nullptr) broadcast(*source, *target);
    }
  }

  void broadcast(const View& source, const View& target) {
    const size_t shift = target.sizes.size() - source.sizes.size();
    for (size_t d = 0; d < source.sizes.size(); ++d) {
      if (!is_one(graph_, source.sizes[d])) equal(source.sizes[d], target.sizes[shift + d]);
    }
  }

  // (batch,) m, k times (batch,) k, n
  void matmul(const View* a, const View* b) {
    const View* c = result(graph_, node_, 0);
    if (a == nullptr || b == nullptr || c == nullptr) return;
    const size_t rank = c->sizes.size();
    if (rank < 2 || rank > 3 || a->sizes.size() != rank || b->sizes.size() != rank) return;
    if (rank == 3) {
      equal(a->sizes[0], b->sizes[0]);
      equal(a->sizes[0], c->sizes[0]);
    }
    equal(a->sizes[rank - 1], b->sizes[rank - 2]);
    equal(a->sizes[rank - 2], c->sizes[rank - 2]);
    equal(b->sizes[rank - 1], c->sizes[rank - 1]);
  }

  void embedding() {
    const View* table = operand(graph_, node_, 0);
    const View* indices = operand(graph_, node_, 1);
    const View* rows = result(graph_, node_, 0);
    if (table == nullptr || indices == nullptr || rows == nullptr) return;
    if (table->sizes.size() != 2 || rows->sizes.size() != indices->sizes.size() + 1) return;
    for (size_t d = 0; d < indices->sizes.size(); ++d) equal(indices->sizes[d], rows->sizes[d]);
    equal(table->sizes[1], rows->sizes.back());
  }

  // Finds which dims are reduced. Returns false if that is unknown.
  bool reduced_dims(size_t rank, std::vector<bool>& reduced) const {
    reduced.assign(rank, false);
    const Arg* dim = ir::find_argument(node_, "dim");
    const auto set = [&](const Arg& arg) {
      int64_t d = 0;
      if (arg.tag != ArgTag::kInt || !graph_.is_constant(arg.a, &d)) return false;
      if (d < 0) d += static_cast<int64_t>(rank);
      if (d < 0 || d >= static_cast<int64_t>(rank)) return false;
      reduced[static_cast<size_t>(d)] = true;
      return true;
    };
    if (dim == nullptr || dim->tag == ArgTag::kNone || (dim->tag == ArgTag::kList && dim->items.empty())) {
      reduced.assign(rank, true);
      return true;
    }
    if (dim->tag != ArgTag::kList) return set(*dim);
    for (const Arg& item : dim->items) {
      if (!set(item)) return false;
    }
    return true;
  }

  void reduction() {
    const View* source = operand(graph_, node_, 0);
    if (source == nullptr) return;
    const size_t rank = source->sizes.size();
    std::vector<bool> reduced;
    if (!reduced_dims(rank, reduced)) return;
    const Arg* keepdim = ir::find_argument(node_, "keepdim");
    int64_t keep = 0;
    if (keepdim != nullptr && (keepdim->tag != ArgTag::kBool || !graph_.is_constant(keepdim->a, &keep))) return;
    for (size_t i = 0; i < node_.results.size(); ++i) {
      const View* target = result(graph_, node_, i);
      if (target == nullptr) continue;
      size_t kept = 0;
      for (size_t d = 0; d < rank; ++d) kept += keep != 0 || !reduced[d];
      if (target->sizes.size() != kept) continue;
      for (size_t d = 0, next = 0; d < rank; ++d) {
        if (!reduced[d]) equal(source->sizes[d], target->sizes[next]);
        next += keep != 0 || !reduced[d];
      }
    }
  }

  // Each result is broadcast over the lists' tensors of its position.
  void foreach () {
    if (node_.results.size() != 1 || node_.results[0].tag != ArgTag::kList) return;
    const std::vector<Arg>& targets = node_.results[0].items;
    for (const Arg& sources : node_.args) {
      if (sources.tag != ArgTag::kList || sources.items.size() != targets.size()) continue;
      for (size_t i = 0; i < targets.size(); ++i) {
        const View* source = view_of(graph_, sources.items[i]);
        const View* target = view_of(graph_, targets[i]);
        if (source == nullptr || target == nullptr || source->sizes.size() > target->sizes.size()) continue;
        broadcast(*source, *target);
      }
    }
  }

  const Graph& graph_;
  const Node& node_;
  const OpDesc& desc_;
  EqualSizes& out_;
};

}  // namespace

void collect_equal_sizes(const Graph& graph, const Node& node, EqualSizes& out) {
  out.clear();
  Collector(graph, node, out).run();
  for (const auto& [a, b] : out) {
    int64_t x = 0;
    int64_t y = 0;
    if (graph.is_constant(a, &x) && graph.is_constant(b, &y) && x != y) {
      out.clear();
      return;
    }
  }
}

bool result_is_contiguous(const OpDesc& desc) {
  switch (desc.shape_rule) {
    case ShapeRule::kMatmul:
    case ShapeRule::kBmm:
    case ShapeRule::kAddmm:
    case ShapeRule::kEmbedding:
    case ShapeRule::kReduction:
      return true;
    default:
      return false;
  }
}

bool keeps_contiguous(const Graph& graph, const Node& node, const View& result) {
  const OpDesc& desc = ir::op_desc(node.opcode);
  if (desc.shape_rule != ShapeRule::kPointwise && desc.shape_rule != ShapeRule::kComparison) return false;
  // Dims of size 0 and 1 have strides that do not follow from the order of dims.
  for (const Sym size : result.sizes) {
    int64_t value = 0;
    if (graph.is_constant(size, &value) && value < 2) return false;
  }
  bool whole = false;
  for (const Arg& arg : node.args) {
    const View* source = view_of(graph, arg);
    if (source == nullptr) continue;
    size_t wide = 0;
    for (const Sym size : source->sizes) wide += !is_one(graph, size);
    if (wide > 1 && !is_contiguous(graph, *source)) return false;
    whole |= source->sizes == result.sizes && is_contiguous(graph, *source);
  }
  return whole;
}

bool is_contiguous(const Graph& graph, const View& view) {
  if (view.dynamic) return false;
  for (size_t d = view.sizes.size(); d-- > 0;) {
    const Sym stride = view.strides[d];
    int64_t value = 0;
    if (d + 1 == view.sizes.size()) {
      if (!is_one(graph, stride)) return false;
      continue;
    }
    // stride must be inner size times inner stride, as Graph::expr writes it.
    const Sym size = view.sizes[d + 1];
    const Sym inner = view.strides[d + 1];
    int64_t inner_value = 0;
    if (graph.is_constant(size, &value)) {
      if (value < 2) {
        if (stride != inner) return false;
        continue;
      }
      int64_t product = 0;
      int64_t stride_value = 0;
      if (graph.is_constant(inner, &inner_value)) {
        if (__builtin_mul_overflow(value, inner_value, &product)) return false;
        if (!graph.is_constant(stride, &stride_value) || stride_value != product) return false;
        continue;
      }
    } else if (is_one(graph, inner)) {
      if (stride != size) return false;
      continue;
    }
    if (stride < graph.params) return false;
    const ir::Expr& expr = graph.exprs[stride - graph.params];
    if (expr.kind != ir::ExprKind::kMul) return false;
    if (!(expr.a == size && expr.b == inner) && !(expr.a == inner && expr.b == size)) return false;
  }
  return true;
}

}  // namespace torch_remote::passes
