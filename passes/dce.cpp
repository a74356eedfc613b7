#include <algorithm>
#include <vector>

#include "passes/pass.h"
#include "passes/rewrite.h"

// dce: removes nodes whose results and writes are unused, and then unused buffers, views and expressions.
//
// One sweep goes from the last node to the first. A buffer is live if it survives, or if a later node that is kept
// reads it. Parameters and input buffers are kept even if they are unused, because a run identifies them by their
// index.
namespace torch_remote::passes {
namespace {

using ir::Arg;
using ir::Graph;
using ir::kNoSym;
using ir::Node;
using ir::Sym;

constexpr uint32_t kGone = 0xFFFFFFFF;

class Sweeper {
 public:
  explicit Sweeper(Graph& graph) : graph_(graph) {}

  void run() {
    sweep();
    compact_buffers_and_views();
    compact_exprs();
  }

 private:
  void sweep() {
    std::vector<bool> live(graph_.buffers.size());
    for (size_t i = 0; i < live.size(); ++i) live[i] = graph_.buffers[i].survives;
    std::vector<bool> keep(graph_.nodes.size());
    for (size_t i = graph_.nodes.size(); i-- > 0;) {
      const Node& node = graph_.nodes[i];
      bool needed = !has_only_declared_effects(ir::op_desc(node.opcode));
      ir::for_each_view(node, [&](uint32_t view, bool writes) {
        needed |= writes && (live[graph_.views[view].buffer] || graph_.views[view].dynamic);
      });
      keep[i] = needed;
      if (!needed) continue;
      ir::for_each_view(node, [&](uint32_t view, bool) { live[graph_.views[view].buffer] = true; });
    }
    if (std::ranges::find(keep, false) == keep.end()) return;
    graph_.drop_plan();
    size_t next = 0;
    for (size_t i = 0; i < keep.size(); ++i) {
      if (!keep[i]) continue;
      if (next != i) graph_.nodes[next] = std::move(graph_.nodes[i]);
      ++next;
    }
    graph_.nodes.resize(next);
  }

  // Computes the new indices of the elements that are kept, in order. Returns false if all are kept.
  static bool renumber(const std::vector<bool>& keep, std::vector<uint32_t>& numbers) {
    uint32_t next = 0;
    numbers.resize(keep.size());
    for (size_t i = 0; i < keep.size(); ++i) numbers[i] = keep[i] ? next++ : kGone;
    return next != keep.size();
  }

  template <typename T>
  static void compact(std::vector<T>& list, const std::vector<uint32_t>& numbers) {
    size_t count = 0;
    for (size_t i = 0; i < list.size(); ++i) {
      if (numbers[i] == kGone) continue;
      if (numbers[i] != i) list[numbers[i]] = std::move(list[i]);
      ++count;
    }
    list.resize(count);
  }

  void compact_buffers_and_views() {
    std::vector<bool> buffers(graph_.buffers.size());
    std::vector<bool> views(graph_.views.size());
    for (size_t i = 0; i < buffers.size(); ++i) {
      buffers[i] = graph_.buffers[i].survives || graph_.buffers[i].kind == ir::BufferKind::kInput;
    }
    for (const Node& node : graph_.nodes) {
      ir::for_each_view(node, [&](uint32_t view, bool) {
        views[view] = true;
        buffers[graph_.views[view].buffer] = true;
      });
    }
    std::vector<uint32_t> numbers;
    if (renumber(views, numbers)) {
      compact(graph_.views, numbers);
      for (Node& node : graph_.nodes) {
        for_each_view_slot(node, [&](uint32_t& view, bool) { view = numbers[view]; });
      }
    }
    if (renumber(buffers, numbers)) {
      compact(graph_.buffers, numbers);
      for (ir::View& view : graph_.views) view.buffer = numbers[view.buffer];
      graph_.drop_plan();
    }
  }

  template <typename F>
  void for_each_symbol(F&& f) {
    for (ir::View& view : graph_.views) {
      for (Sym& size : view.sizes) f(size, 1u);
      for (Sym& stride : view.strides) f(stride, 1u);
      if (view.offset != kNoSym) f(view.offset, 1u);
    }
    for (ir::Buffer& buffer : graph_.buffers) {
      if (buffer.nbytes != kNoSym) f(buffer.nbytes, 1u);
    }
    for (Node& node : graph_.nodes) {
      for (Arg& arg : node.args) ir::for_each_symbol(arg, f);
    }
  }

  void compact_exprs() {
    std::vector<bool> used(graph_.exprs.size());
    const auto use = [&](Sym symbol, uint32_t count) {
      for (uint32_t i = 0; i < count; ++i) {
        if (symbol + i >= graph_.params) used[symbol + i - graph_.params] = true;
      }
    };
    for_each_symbol(use);
    for (size_t i = used.size(); i-- > 0;) {
      if (!used[i] || graph_.exprs[i].kind == ir::ExprKind::kConst) continue;
      use(graph_.exprs[i].a, 1);
      use(graph_.exprs[i].b, 1);
    }
    std::vector<uint32_t> numbers;
    if (!renumber(used, numbers)) return;
    const auto move = [&](Sym& symbol, uint32_t) {
      if (symbol >= graph_.params) symbol = graph_.params + numbers[symbol - graph_.params];
    };
    compact(graph_.exprs, numbers);
    for (ir::Expr& expr : graph_.exprs) {
      if (expr.kind == ir::ExprKind::kConst) continue;
      move(expr.a, 1);
      move(expr.b, 1);
    }
    for_each_symbol(move);
    graph_.index_ = {};
  }

  Graph& graph_;
};

}  // namespace

Status dce(Graph& graph, const PassContext&) {
  graph.drop_groups();
  Sweeper(graph).run();
  return {};
}

}  // namespace torch_remote::passes
