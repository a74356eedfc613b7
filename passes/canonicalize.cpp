#include <algorithm>
#include <unordered_map>
#include <vector>

#include "ir/ops/op_table_generated.h"
#include "passes/pass.h"
#include "passes/rewrite.h"
#include "passes/shape_facts.h"

// canonicalize: gives equal things one name, so that later passes see that they are equal.
//
// 1. Sizes that an op's semantics makes equal become one symbol: a + b has the sizes of a. All parameters stay in the
//    graph, but fewer of them are used.
// 2. Two nodes with the same op on operands of the same layout have results of the same layout, because the recorder
//    computes it from these alone. Nodes that `lift` created are excluded: their results have the operand's layout.
// 3. Equal expressions become one symbol.
// 4. Strides of results that are certainly contiguous become products of the sizes.
// 5. A copy of an unchanging value to a temporary of the same layout is removed, and so is a copy of a view to itself.
//    The copied value must have all memory that views of the temporary reach.
// 6. Equal views become one.
namespace torch_remote::passes {
namespace {

using ir::Arg;
using ir::ArgTag;
using ir::Expr;
using ir::ExprKind;
using ir::Graph;
using ir::kNoSym;
using ir::Node;
using ir::Sym;
using ir::View;

struct ExprHash {
  size_t operator()(const Expr& expr) const {
    uint64_t hash = static_cast<uint64_t>(expr.value) * 0x9E3779B97F4A7C15 + static_cast<uint64_t>(expr.kind);
    hash = (hash ^ (static_cast<uint64_t>(expr.a) << 32 | expr.b)) * 0xC2B2AE3D27D4EB4F;
    return hash ^ hash >> 32;
  }
};

using Key = std::vector<uint32_t>;

class Canonicalizer {
 public:
  explicit Canonicalizer(Graph& graph) : graph_(graph) {}

  void run() {
    // Contiguous strides make more nodes equal, and equal nodes make more sizes equal.
    for (bool again = true; again;) {
      again = merge_sizes();
      while (merge_layouts()) again = true;
      merge_exprs();
      rename_symbols();
      again |= contiguous_results();
    }
    drop_copies();
    merge_views();
  }

 private:
  // -- symbols -------------------------------------------------------------------------------------------------------

  // The symbol that represents a class: its constant if it has one, otherwise its first parameter.
  Sym find(Sym symbol) {
    while (canonical_[symbol] != symbol) {
      canonical_[symbol] = canonical_[canonical_[symbol]];
      symbol = canonical_[symbol];
    }
    return symbol;
  }

  bool mergeable(Sym symbol) const { return symbol < graph_.params || graph_.is_constant(symbol); }

  bool merge_sizes() {
    bool merged = false;
    canonical_.resize(graph_.symbols());
    for (Sym i = 0; i < canonical_.size(); ++i) canonical_[i] = i;
    EqualSizes equal;
    for (const Node& node : graph_.nodes) {
      collect_equal_sizes(graph_, node, equal);
      for (const auto& [a, b] : equal) {
        merged |= merge(a, b);
      }
    }
    return merged;
  }

  // Merges two symbols that have the same value. Returns false if nothing changed, or if they cannot be merged.
  bool merge(Sym a, Sym b) {
    if (!mergeable(a) || !mergeable(b)) return false;
    a = find(a);
    b = find(b);
    const bool a_constant = a >= graph_.params;
    const bool b_constant = b >= graph_.params;
    if (a == b || (a_constant && b_constant)) return false;
    if (b_constant || (!a_constant && b < a)) std::swap(a, b);
    canonical_[b] = a;
    return true;
  }

  // -- layouts -------------------------------------------------------------------------------------------------------

  // Returns true if a symbol was merged: then other nodes may have become equal.
  bool merge_layouts() {
    bool merged = false;
    layouts_.clear();
    for (uint32_t i = 0; i < graph_.nodes.size(); ++i) {
      const Node& node = graph_.nodes[i];
      const ir::OpDesc& desc = ir::op_desc(node.opcode);
      if ((desc.flags & ir::kOpPure) == 0 || node.results.empty() || keeps_operand_layout(node)) continue;
      layout_key(node, desc);
      const auto [found, added] = layouts_.try_emplace(key_, i);
      if (added) continue;
      const Node& first = graph_.nodes[found->second];
      for (size_t r = 0; r < node.results.size(); ++r) merged |= merge_results(first.results[r], node.results[r]);
    }
    return merged;
  }

  // Whether `lift` may have created the node: the result has the operand's layout, symbol by symbol.
  bool keeps_operand_layout(const Node& node) const {
    if (node.args.empty() || node.args[0].tag != ArgTag::kView || node.results[0].tag != ArgTag::kView) return false;
    const View& operand = graph_.views[node.args[0].a];
    const View& result = graph_.views[node.results[0].a];
    return operand.offset == result.offset && operand.strides == result.strides;
  }

  bool merge_results(const Arg& first, const Arg& other) {
    bool merged = false;
    for (size_t i = 0; i < first.items.size(); ++i) merged |= merge_results(first.items[i], other.items[i]);
    if (first.tag != ArgTag::kView) return merged;
    const View& a = graph_.views[first.a];
    const View& b = graph_.views[other.a];
    if (a.dynamic) return merged;
    for (size_t d = 0; d < a.sizes.size(); ++d) {
      merged |= merge(a.sizes[d], b.sizes[d]);
      merged |= merge(a.strides[d], b.strides[d]);
    }
    return merge(a.offset, b.offset) || merged;
  }

  void layout_key(const Node& node, const ir::OpDesc& desc) {
    // The numbers of a pointwise op do not affect the result's layout.
    const bool numbers = desc.shape_rule != ir::ShapeRule::kPointwise && desc.shape_rule != ir::ShapeRule::kComparison;
    key_.assign(1, node.opcode);
    for (const Arg& arg : node.args) add_operand(arg, numbers);
    for (const Arg& result : node.results) add_result(result);
  }

  void add_operand(const Arg& arg, bool numbers) {
    key_.push_back(static_cast<uint32_t>(arg.tag));
    switch (arg.tag) {
      case ArgTag::kView: {
        const View& view = graph_.views[arg.a];
        key_.push_back(static_cast<uint32_t>(view.dtype) | static_cast<uint32_t>(view.sizes.size()) << 8);
        for (const Sym size : view.sizes) key_.push_back(find(size));
        for (const Sym stride : view.strides) key_.push_back(find(stride));
        break;
      }
      case ArgTag::kList:
        key_.push_back(static_cast<uint32_t>(arg.items.size()));
        for (const Arg& item : arg.items) add_operand(item, numbers);
        break;
      case ArgTag::kString:
        key_.push_back(static_cast<uint32_t>(arg.text.size()));
        for (const char c : arg.text) key_.push_back(static_cast<unsigned char>(c));
        break;
      case ArgTag::kInt:
      case ArgTag::kFloat:
      case ArgTag::kBool:
      case ArgTag::kComplex:
        if (numbers || graph_.is_constant(arg.a)) key_.push_back(find(arg.a));
        break;
      case ArgTag::kScalarTensor:
        key_.push_back(arg.b);
        if (numbers) key_.push_back(arg.a);
        break;
      default:
        key_.push_back(arg.a);
    }
  }

  void add_result(const Arg& result) {
    key_.push_back(static_cast<uint32_t>(result.tag));
    if (result.tag == ArgTag::kView) {
      const View& view = graph_.views[result.a];
      key_.push_back(static_cast<uint32_t>(view.dtype) | static_cast<uint32_t>(view.sizes.size()) << 8);
    }
    key_.push_back(static_cast<uint32_t>(result.items.size()));
    for (const Arg& item : result.items) add_result(item);
  }

  void merge_exprs() {
    std::unordered_map<Expr, Sym, ExprHash> seen;
    seen.reserve(graph_.exprs.size());
    bool changed = false;
    for (uint32_t i = 0; i < graph_.exprs.size(); ++i) {
      Expr& expr = graph_.exprs[i];
      const Sym symbol = graph_.params + i;
      if (expr.kind != ExprKind::kConst) {
        for (Sym* operand : {&expr.a, &expr.b}) {
          const Sym known = find(*operand);
          if (known == *operand || known >= symbol) continue;  // a constant may come later than its user
          *operand = known;
          changed = true;
        }
      }
      const auto [found, added] = seen.try_emplace(expr, symbol);
      if (!added) canonical_[symbol] = found->second;
    }
    if (changed) graph_.index_ = {};
  }

  void rename_symbols() {
    const auto rename = [&](Sym& symbol) {
      if (symbol != kNoSym) symbol = find(symbol);
    };
    for (View& view : graph_.views) {
      for (Sym& size : view.sizes) rename(size);
      for (Sym& stride : view.strides) rename(stride);
      rename(view.offset);
    }
    for (ir::Buffer& buffer : graph_.buffers) rename(buffer.nbytes);
    for (Node& node : graph_.nodes) {
      for (Arg& arg : node.args) {
        // Adjacent symbols must stay adjacent.
        ir::for_each_symbol(arg, [&](Sym& symbol, uint32_t count) {
          if (count == 1) rename(symbol);
        });
      }
    }
  }

  // -- strides -------------------------------------------------------------------------------------------------------

  // A stride is replaced in every view: it is the same number there, and `keeps_operand_layout` compares symbols. Only
  // parameters that are not sizes are replaced, so that no replacement is itself replaced.
  bool contiguous_results() {
    bool replaced = false;
    strides_.resize(graph_.symbols());
    replaceable_.assign(graph_.params, true);
    for (Sym i = 0; i < strides_.size(); ++i) strides_[i] = i;
    for (const View& view : graph_.views) {
      for (const Sym size : view.sizes) {
        if (size < graph_.params) replaceable_[size] = false;
      }
    }
    for (const Node& node : graph_.nodes) {
      ir::for_each_view(node, [&](uint32_t view, bool) { rename_strides(graph_.views[view]); });
      const bool always = result_is_contiguous(ir::op_desc(node.opcode));
      for (const Arg& result : node.results) {
        if (result.tag != ArgTag::kView) continue;
        View& view = graph_.views[result.a];
        if (view.dynamic || is_contiguous(graph_, view)) continue;
        if (always || keeps_contiguous(graph_, node, view)) replaced |= set_contiguous(view);
      }
    }
    for (View& view : graph_.views) rename_strides(view);
    return replaced;
  }

  void rename_strides(View& view) {
    for (Sym& stride : view.strides) {
      if (stride < strides_.size()) stride = strides_[stride];
    }
  }

  // Computes strides as torch does: a dim of size 0 counts as 1.
  bool set_contiguous(View& view) {
    bool replaced = false;
    Sym stride = kNoSym;
    for (size_t d = view.sizes.size(); d-- > 0;) {
      if (d + 1 == view.sizes.size()) {
        stride = graph_.constant(1);
      } else {
        int64_t value = 0;
        const bool zero = graph_.is_constant(view.sizes[d + 1], &value) && value == 0;
        if (!zero) stride = graph_.expr(ExprKind::kMul, view.sizes[d + 1], stride);
      }
      if (view.strides[d] >= graph_.params || !replaceable_[view.strides[d]]) continue;
      strides_[view.strides[d]] = stride;
      replaced = true;
    }
    rename_strides(view);
    return replaced;
  }

  // -- copies --------------------------------------------------------------------------------------------------------

  void drop_copies() {
    std::vector<bool> constant;  // computed at the first copy
    std::vector<uint32_t> target(graph_.buffers.size());
    for (uint32_t i = 0; i < target.size(); ++i) target[i] = i;
    size_t next = 0;
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      Node& node = graph_.nodes[i];
      bool drop = false;
      if (node.opcode == ir::ops::aten_copy_ && node.args[0].tag == ArgTag::kView &&
          node.args[1].tag == ArgTag::kView) {
        if (constant.empty()) constant = constant_buffers(graph_);
        const View& to = graph_.views[node.args[0].a];
        const View& from = graph_.views[node.args[1].a];
        const uint32_t source = target[from.buffer];
        const ir::Buffer& made = graph_.buffers[to.buffer];
        if (ir::same_geometry(to, from)) {
          drop = to.buffer == source;
          if (!drop && made.written_once && !made.survives && constant[source] && reaches_no_further(to, source)) {
            drop = true;
            target[to.buffer] = source;
          }
        }
      }
      if (drop) continue;
      if (next != i) graph_.nodes[next] = std::move(node);
      ++next;
    }
    if (next == graph_.nodes.size()) return;
    graph_.drop_plan();
    graph_.nodes.resize(next);
    for (View& view : graph_.views) view.buffer = target[view.buffer];
    for (uint32_t i = 0; i < target.size(); ++i) {
      if (target[i] != i) graph_.buffers[i].written_once = false;  // nothing touches it any more
    }
  }

  // Whether all views of the temporary that `copy` belongs to fit into the source. A temporary may be larger than the
  // copy: then other views of it read elements that nothing wrote, which the source may not have.
  bool reaches_no_further(const View& copy, uint32_t source) const {
    const Sym nbytes = graph_.buffers[source].nbytes;
    if (nbytes != kNoSym && nbytes == graph_.buffers[copy.buffer].nbytes) return true;
    return std::ranges::all_of(
        graph_.views, [&](const View& view) { return view.buffer != copy.buffer || ir::same_geometry(view, copy); });
  }

  // -- views ---------------------------------------------------------------------------------------------------------

  static uint64_t hash_of(const View& view) {
    uint64_t hash = static_cast<uint64_t>(view.buffer) << 8 | static_cast<uint64_t>(view.dtype);
    const auto add = [&](Sym symbol) {
      hash = (hash ^ symbol) * 0x9E3779B97F4A7C15;
      hash ^= hash >> 31;
    };
    for (const Sym size : view.sizes) add(size);
    for (const Sym stride : view.strides) add(stride);
    add(view.offset);
    return hash;
  }

  void merge_views() {
    std::unordered_map<uint64_t, uint32_t> seen;
    seen.reserve(graph_.views.size());
    std::vector<uint32_t> numbers(graph_.views.size());
    bool changed = false;
    for (uint32_t i = 0; i < numbers.size(); ++i) {
      numbers[i] = i;
      const View& view = graph_.views[i];
      if (view.dynamic) continue;
      const auto [found, added] = seen.try_emplace(hash_of(view), i);
      const View& other = graph_.views[found->second];
      if (added || view.buffer != other.buffer || !ir::same_geometry(view, other)) continue;
      numbers[i] = found->second;
      changed = true;
    }
    if (!changed) return;
    for (Node& node : graph_.nodes) {
      for_each_view_slot(node, [&](uint32_t& view, bool) { view = numbers[view]; });
    }
  }

  Graph& graph_;
  std::vector<Sym> canonical_;
  std::vector<Sym> strides_;                              // for each symbol: the stride that replaces it
  std::vector<bool> replaceable_;                         // per parameter
  std::unordered_map<Key, uint32_t, WordsHash> layouts_;  // to the first node with this key
  Key key_;
};

}  // namespace

Status canonicalize(Graph& graph, const PassContext&) {
  graph.drop_groups();
  Canonicalizer(graph).run();
  return {};
}

}  // namespace torch_remote::passes
