#include "ir/fusion/sections.h"

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include "ir/analysis.h"
#include "ir/fusion/fusion.h"
#include "ir/ops/op_table_generated.h"

namespace torch_remote::ir {
namespace {

// The most sections of a group. Each section is one call of a kernel.
constexpr int64_t kMaxSections = 8;

// Positions first, first + step, ... of a dim.
struct Range {
  uint32_t dim = 0;
  int64_t first = 0, step = 1, count = 0;
  bool operator==(const Range&) const = default;
};

// The positions that both ranges have. The first one is found by trying at most `b.step` consecutive positions of `a`.
Range intersection(const Range& a, const Range& b) {
  Range both = {a.dim, 0, std::lcm(a.step, b.step), 0};
  const int64_t begin = std::max(a.first, b.first);
  const int64_t end = std::min(a.first + (a.count - 1) * a.step, b.first + (b.count - 1) * b.step) + 1;
  int64_t place = a.first + (begin - a.first + a.step - 1) / a.step * a.step;
  for (int64_t tries = 0; tries < b.step && place < end; ++tries, place += a.step) {
    if ((place - b.first) % b.step != 0) continue;
    both.first = place;
    both.count = (end - 1 - place) / both.step + 1;
    break;
  }
  return both;
}

// Each position along a dim of the result belongs to one operand, which has all of its own positions in order. The
// positions of an operand without a view are zeros.
struct Join {
  struct Operand {
    uint32_t view = kNone;
    Range positions;  // positions in the result
  };
  static constexpr uint32_t kNone = 0xFFFFFFFF;
  uint32_t result = 0;  // view
  uint32_t dim = 0;
  std::vector<Operand> operands;
};

// A section that may still have joins. Each view belongs to one node, which names it once.
class PartialSection {
 public:
  // Takes all of the nodes. Returns false if a join has a form that cannot be cut.
  bool add_nodes(const Graph& graph, std::span<const int64_t> values, std::span<const uint32_t> nodes) {
    for (const uint32_t n : nodes) count_params(graph, graph.nodes[n]);
    section_.values.resize(section_.graph.params);
    for (const uint32_t n : nodes) {
      Node node = graph.nodes[n];
      for (Arg& arg : node.args) add_argument(graph, values, arg);
      for (Arg& arg : node.results) add_argument(graph, values, arg);
      node_of_view_.resize(section_.graph.views.size(), static_cast<uint32_t>(section_.graph.nodes.size()));
      section_.graph.nodes.push_back(std::move(node));
      section_.nodes.push_back(n);
    }
    if (dynamic_) return false;
    dropped_nodes_.assign(nodes.size(), false);
    writes_.assign(section_.graph.views.size(), false);
    for (const Node& node : section_.graph.nodes) {
      for_each_view(node, [&](uint32_t v, bool writes) { writes_[v] = writes; });
    }
    auto views = std::make_shared<Views>();
    views->of_buffer.resize(section_.graph.buffers.size());
    views->of_node.resize(nodes.size());
    for (uint32_t v = 0; v < node_of_view_.size(); ++v) {
      views->of_buffer[view(v).buffer].push_back(v);
      views->of_node[node_of_view_[v]].push_back(v);
    }
    views_ = std::move(views);
    for (uint32_t n = 0; n < nodes.size(); ++n) {
      if (is_join(section_.graph.nodes[n].opcode) && !find_join(n)) return false;
    }
    params_.clear();
    pairs_.clear();
    buffers_.clear();
    return updates_same_places();
  }

  // The last join, or kNoNode.
  uint32_t last_join() const { return joins_.empty() ? kNoNode : joins_.rbegin()->first; }

  size_t operands_of(uint32_t join) const { return joins_.at(join).operands.size(); }

  // Keeps only the positions of the join's result that belong to one operand, so that the join becomes a copy. Returns
  // false if other nodes do not allow this. Sets `empty` if the operand has no positions; the section is then empty.
  bool keep_operand(uint32_t node, size_t operand, bool* empty) {
    const Join join = joins_.at(node);
    joins_.erase(node);
    const Range range = join.operands[operand].positions;
    *empty = range.count == 0;
    if (*empty) return true;
    Node& copy = section_.graph.nodes[node];
    const uint32_t source = join.operands[operand].view;
    copy.opcode = source == Join::kNone ? ops::aten_zero_ : ops::aten_copy_;
    copy.args = {view_arg(join.result)};
    if (source != Join::kNone) {
      copy.args.push_back(view_arg(source));
      Arg& blocking = copy.args.emplace_back();
      blocking.tag = ArgTag::kBool;
      blocking.a = constant(0);
    }
    for (size_t i = 0; i < join.operands.size(); ++i) {
      if (i != operand && join.operands[i].view != Join::kNone) node_of_view_[join.operands[i].view] = kNoNode;
    }
    copy.results.assign(op_desc(copy.opcode).results.size(), Arg{});
    drop_others(node);
    ranges_.assign(section_.graph.views.size(), std::nullopt);
    if (!is_all(join.result, range)) {
      ranges_[join.result] = range;
      if (!through_buffer(join.result, range)) return false;
    }
    apply();
    drop_others(node);
    return true;
  }

  // Completes a section without joins. `done` holds, for each node, the positions at which earlier sections compute it.
  // Clears `once` if a node would write to existing memory a second time.
  Section finish(std::vector<std::set<std::vector<int64_t>>>* done, bool* once) {
    Graph& graph = section_.graph;
    std::vector<Node> nodes;
    std::vector<uint32_t> of;
    for (uint32_t n = 0; n < graph.nodes.size(); ++n) {
      if (dropped_nodes_[n]) continue;
      // The sections of a cut compute a node at different positions, or all of them at the same positions.
      if (!(*done)[n].insert(places_of(n)).second) discard_results(graph.nodes[n], once);
      nodes.push_back(std::move(graph.nodes[n]));
      of.push_back(section_.nodes[n]);
    }
    graph.nodes = std::move(nodes);
    section_.nodes = std::move(of);
    return std::move(section_);
  }

 private:
  // -- The group's nodes ----------------------------------------------------------------------------------------------

  // Arguments that differ between runs become parameters; all others become constants with their values in this run.
  void count_params(const Graph& graph, const Node& node) {
    const auto visit = [&](const auto& self, const Arg& arg) -> void {
      for (const Arg& item : arg.items) self(self, item);
      const uint32_t count = count_symbols(arg);
      if (count == 0 || (count == 1 && (graph.is_constant(arg.a) || params_.contains(arg.a)))) return;
      if (count == 2 && pairs_.contains(arg.a)) return;
      (count == 1 ? params_ : pairs_)[arg.a] = static_cast<Sym>(section_.symbols.size());
      for (uint32_t i = 0; i < count; ++i) section_.symbols.push_back(arg.a + i);
      section_.graph.params = static_cast<uint32_t>(section_.symbols.size());
    };
    for (const Arg& arg : node.args) visit(visit, arg);
  }

  void add_argument(const Graph& graph, std::span<const int64_t> values, Arg& arg) {
    for (Arg& item : arg.items) add_argument(graph, values, item);
    if (const uint32_t count = count_symbols(arg); count != 0) {
      const bool known = count == 1 && graph.is_constant(arg.a);
      const Sym symbol = known ? constant(values[arg.a]) : (count == 1 ? params_ : pairs_).at(arg.a);
      for (uint32_t i = 0; i < count && !known; ++i) set(symbol + i, values[arg.a + i]);
      arg.a = symbol;
    }
    if (arg.tag != ArgTag::kView) return;
    View view = graph.views[arg.a];
    const auto [buffer, added] =
        buffers_.try_emplace(view.buffer, static_cast<uint32_t>(section_.graph.buffers.size()));
    if (added) {
      section_.buffers.push_back(view.buffer);
      section_.graph.buffers.push_back(graph.buffers[view.buffer]);
      section_.graph.buffers.back().nbytes = kNoSym;
      section_.graph.buffers.back().may_reuse = kNoBuffer;
    }
    view.buffer = buffer->second;
    if (view.dynamic) {
      dynamic_ = true;
      return;
    }
    for (Sym& size : view.sizes) size = constant(values[size]);
    for (Sym& stride : view.strides) stride = constant(values[stride]);
    view.offset = constant(values[view.offset]);
    arg.a = static_cast<uint32_t>(section_.graph.views.size());
    section_.graph.views.push_back(std::move(view));
  }

  void set(Sym symbol, int64_t value) {
    if (section_.values.size() <= symbol) section_.values.resize(symbol + 1);
    section_.values[symbol] = value;
    if (section_.symbols.size() <= symbol) section_.symbols.resize(symbol + 1, kNoSym);
  }

  Sym constant(int64_t value) {
    const Sym symbol = section_.graph.constant(value);
    set(symbol, value);
    return symbol;
  }

  static Arg view_arg(uint32_t view) {
    Arg arg;
    arg.tag = ArgTag::kView;
    arg.a = view;
    return arg;
  }
  const View& view(uint32_t index) const { return section_.graph.views[index]; }
  int64_t value(Sym symbol) const { return section_.values[symbol]; }
  int64_t size(uint32_t index, uint32_t dim) const { return value(view(index).sizes[dim]); }
  int64_t stride(uint32_t index, uint32_t dim) const { return value(view(index).strides[dim]); }

  // -- Joins ----------------------------------------------------------------------------------------------------------

  bool find_join(uint32_t n) {
    Node& node = section_.graph.nodes[n];
    Join join;
    if (node.results.size() != 1 || node.results[0].tag != ArgTag::kView) return false;
    join.result = node.results[0].a;
    const auto rank = static_cast<int64_t>(view(join.result).sizes.size());
    int64_t dim = 0;
    if (!number(node, "dim", &dim)) return false;
    if (dim < 0) dim += rank;
    if (dim < 0 || dim >= rank) return false;
    join.dim = static_cast<uint32_t>(dim);
    const bool found = expansion_of(node.opcode) == Expansion::kCat     ? find_operands(node, false, &join)
                       : expansion_of(node.opcode) == Expansion::kStack ? find_operands(node, true, &join)
                                                                        : find_slice(node, &join);
    if (!found) return false;
    int64_t places = 0;
    for (const Join::Operand& operand : join.operands) places += operand.positions.count;
    if (places != size(join.result, join.dim)) return false;
    joins_[n] = std::move(join);
    return true;
  }

  bool number(const Node& node, std::string_view name, int64_t* found) {
    const Arg* arg = find_argument(node, name);
    if (arg == nullptr || arg->tag != ArgTag::kInt) return false;
    *found = value(arg->a);
    if (section_.symbols[arg->a] != kNoSym) section_.depends.push_back(section_.symbols[arg->a]);
    return true;
  }

  bool find_operands(const Node& node, bool stacks, Join* join) {
    const Arg* tensors = find_argument(node, "tensors");
    if (tensors == nullptr || tensors->tag != ArgTag::kList) return false;
    const size_t rank = view(join->result).sizes.size();
    int64_t begin = 0;
    for (const Arg& tensor : tensors->items) {
      if (tensor.tag != ArgTag::kView) return false;
      if (stacks) {
        View& operand = section_.graph.views[tensor.a];
        if (operand.sizes.size() + 1 != rank) return false;
        operand.sizes.insert(operand.sizes.begin() + join->dim, constant(1));
        operand.strides.insert(operand.strides.begin() + join->dim, constant(0));
      }
      // The operands of another rank are those that cat skips, of shape [0]; they cannot be cut.
      if (view(tensor.a).sizes.size() != rank) return false;
      const int64_t count = size(tensor.a, join->dim);
      join->operands.push_back({tensor.a, {join->dim, begin, 1, count}});
      begin += count;
    }
    return true;
  }

  // The gradient of a slice has the slice's gradient among zeros.
  bool find_slice(const Node& node, Join* join) {
    const bool selects = expansion_of(node.opcode) == Expansion::kSelectBackward;
    const Arg* grad = find_argument(node, "grad_output");
    int64_t first = 0, end = 0, step = 1;
    if (grad == nullptr || grad->tag != ArgTag::kView || !number(node, selects ? "index" : "start", &first) ||
        (!selects && (!number(node, "end", &end) || !number(node, "step", &step))) || step < 1) {
      return false;
    }
    const int64_t places = size(join->result, join->dim);
    if (first < 0) first += places;
    if (first < 0 || first > places) return false;  // torch clamps such a start
    if (end < 0) end += places;
    end = selects ? first + 1 : std::clamp(end, first, places);
    if (first >= end || end > places) return false;
    const int64_t count = (end - first - 1) / step + 1, last = first + (count - 1) * step;
    View& inner = section_.graph.views[grad->a];
    if (selects) {
      inner.sizes.insert(inner.sizes.begin() + join->dim, constant(1));
      inner.strides.insert(inner.strides.begin() + join->dim, constant(0));
    }
    if (inner.sizes.size() != view(join->result).sizes.size() || size(grad->a, join->dim) != count) return false;
    const auto add = [&](uint32_t of, int64_t from, int64_t by, int64_t number) {
      if (number > 0) join->operands.push_back({of, {join->dim, from, by, number}});
    };
    add(Join::kNone, 0, 1, first);
    add(grad->a, first, step, count);
    if (count > 1) {
      if (step > kMaxSections) return false;
      for (int64_t k = 1; k < step; ++k) add(Join::kNone, first + k, step, count - 1);
    }
    add(Join::kNone, last + 1, 1, places - 1 - last);
    return true;
  }

  // -- Narrower views -------------------------------------------------------------------------------------------------

  bool is_all(uint32_t v, const Range& range) const {
    return range.first == 0 && range.step == 1 && range.count == size(v, range.dim);
  }

  // Keeps only these positions of the view. Does the same for the other views of its node, and for the views of its
  // buffer in other nodes.
  bool narrow(uint32_t v, const Range& range) {
    const bool begun = ranges_[v].has_value() || is_all(v, range);
    return narrow_buffer(v, range) && (begun || through_node(v, range));
  }

  // As `narrow`, but without the other views of the view's own node, which the caller narrows.
  bool narrow_buffer(uint32_t v, const Range& range) {
    if (ranges_[v].has_value()) return *ranges_[v] == range;
    if (is_all(v, range)) return true;
    if (range.first < 0 || range.first + (range.count - 1) * range.step >= size(v, range.dim)) return false;
    ranges_[v] = range;
    return through_buffer(v, range);
  }

  bool through_node(uint32_t v, const Range& range) {
    const uint32_t n = node_of_view_[v];
    if (const auto join = joins_.find(n); join != joins_.end()) return through_join(join->second, v, range);
    KernelForm form;
    if (!find_form(section_.graph, section_.graph.nodes[n], 0, &form) || !is_independent_by_position(form))
      return false;
    std::vector<AxisRange> axes;
    uint32_t axis = kNoNode;
    for (const Part& part : form.parts) {
      if (part.view != v) continue;
      if (!find_axes(section_.graph, form, part, &axes) || axes[range.dim].count != 1) return false;
      axis = axes[range.dim].first;
    }
    if (axis == kNoNode || (form.reduced >> axis & 1) != 0) return false;
    for (const Part& part : form.parts) {
      if (part.reduces_other_axes || !find_axes(section_.graph, form, part, &axes)) return false;
      for (uint32_t d = 0; d < axes.size(); ++d) {
        if (axes[d].count != 1 || axes[d].first != axis) continue;
        if (!narrow(part.view, {d, range.first, range.step, range.count})) return false;
      }
    }
    return true;
  }

  // Whether what the node computes at a position depends only on the elements there, not on the position or on the
  // number of positions.
  static bool is_independent_by_position(const KernelForm& form) {
    switch (form.expansion) {
      case Expansion::kExpression:
      case Expansion::kCopy:
      case Expansion::kFill:
      case Expansion::kGelu:
      case Expansion::kGeluBackward:
      case Expansion::kClamp:
      case Expansion::kClampByTensors:
      case Expansion::kNanToNum:
      case Expansion::kLogSigmoid:
      case Expansion::kPreluBackward:
      case Expansion::kSoftmax:
      case Expansion::kLogSoftmax:
      case Expansion::kSoftmaxBackward:
      case Expansion::kLogSoftmaxBackward:
      case Expansion::kLayerNorm:
      case Expansion::kSum:
      case Expansion::kMean:
      case Expansion::kMax:
      case Expansion::kMin:
      case Expansion::kProduct:
      case Expansion::kAny:
      case Expansion::kAll:
      case Expansion::kVectorNorm:
      case Expansion::kNanSum:
      case Expansion::kCountNonzero:
      case Expansion::kLogSumExp:
      case Expansion::kEmbedding:
      case Expansion::kIndexSelect:
      case Expansion::kGather:
      case Expansion::kTake:
      case Expansion::kIndex:
        return true;
      default:
        return false;
    }
  }

  bool through_join(Join& join, uint32_t v, const Range& range) {
    std::vector<Join::Operand> operands = join.operands;
    if (range.dim != join.dim) {
      if (!narrow(join.result, range)) return false;
      return std::ranges::all_of(operands, [&](const Join::Operand& operand) {
        return operand.view == Join::kNone || narrow(operand.view, range);
      });
    }
    if (v != join.result) return false;
    join.operands.clear();
    for (const Join::Operand& operand : operands) {
      const Range& places = operand.positions;
      const Range both = intersection(range, places);
      if (both.count > 0) {
        // The common positions, as positions among those that are left, and as positions in the operand.
        const Range left = {join.dim, (both.first - range.first) / range.step, both.step / range.step, both.count};
        const Range inner = {join.dim, (both.first - places.first) / places.step, both.step / places.step, both.count};
        join.operands.push_back({operand.view, left});
        if (operand.view != Join::kNone && !narrow_buffer(operand.view, inner)) return false;
      } else if (operand.view != Join::kNone) {
        node_of_view_[operand.view] = kNoNode;
      }
    }
    return true;
  }

  bool through_buffer(uint32_t v, const Range& range) {
    const uint32_t buffer = view(v).buffer;
    if (!is_written(buffer)) return true;
    for (const uint32_t u : views_->of_buffer[buffer]) {
      if (u == v || !is_live(u)) continue;
      Range same;
      if (!find_same(v, range, u, &same) || !narrow(u, same)) return false;
    }
    return true;
  }

  // Finds the same elements as positions of another view.
  bool find_same(uint32_t v, const Range& range, uint32_t u, Range* same) const {
    const int64_t places = size(v, range.dim), apart = stride(v, range.dim);
    if (apart == 0 || value(view(u).offset) != value(view(v).offset)) return false;
    bool found = false;
    for (uint32_t d = 0; d < view(u).sizes.size(); ++d) {
      if (stride(u, d) != apart || size(u, d) == 1) continue;
      if (found) return false;
      found = true;
      if (size(u, d) == places) {
        *same = range;
        same->dim = d;
        continue;
      }
      // View `u` has one dim where `v` has two.
      if (range.dim == 0 || range.count != 1 || stride(v, range.dim - 1) != apart * places ||
          size(u, d) != places * size(v, range.dim - 1)) {
        return false;
      }
      *same = {d, range.first, places, size(v, range.dim - 1)};
    }
    return found;
  }

  void apply() {
    for (uint32_t v = 0; v < ranges_.size(); ++v) {
      if (!ranges_[v].has_value()) continue;
      const Range& range = *ranges_[v];
      View changed = view(v);
      changed.offset = constant(value(changed.offset) + range.first * stride(v, range.dim));
      changed.sizes[range.dim] = constant(range.count);
      changed.strides[range.dim] = constant(range.step * stride(v, range.dim));
      section_.graph.views[v] = std::move(changed);
    }
  }

  // -- Nodes ----------------------------------------------------------------------------------------------------------

  bool is_live(uint32_t v) const { return node_of_view_[v] != kNoNode && !dropped_nodes_[node_of_view_[v]]; }

  bool is_written(uint32_t buffer) const {
    return std::ranges::any_of(views_->of_buffer[buffer], [&](uint32_t v) { return writes_[v] && is_live(v); });
  }

  // Keeps the nodes that are connected to this node through written buffers. The other nodes belong to another section.
  void drop_others(uint32_t node) {
    std::vector<bool> reached(dropped_nodes_.size(), false), seen(views_->of_buffer.size(), false);
    std::vector<uint32_t> next = {node};
    reached[node] = true;
    while (!next.empty()) {
      const uint32_t n = next.back();
      next.pop_back();
      for (const uint32_t v : views_->of_node[n]) {
        const uint32_t buffer = view(v).buffer;
        if (node_of_view_[v] != n || seen[buffer]) continue;
        seen[buffer] = true;
        if (!is_written(buffer)) continue;
        for (const uint32_t u : views_->of_buffer[buffer]) {
          if (!is_live(u) || reached[node_of_view_[u]]) continue;
          reached[node_of_view_[u]] = true;
          next.push_back(node_of_view_[u]);
        }
      }
    }
    for (uint32_t n = 0; n < dropped_nodes_.size(); ++n) {
      if (reached[n]) continue;
      dropped_nodes_[n] = true;
      joins_.erase(n);
    }
  }

  // Whether all views of a buffer that the group updates cover the same elements. Then no section reads what another
  // one updates.
  bool updates_same_places() const {
    for (uint32_t v = 0; v < node_of_view_.size(); ++v) {
      bool creates = false, writes = false;
      for_each_access(section_.graph.nodes[node_of_view_[v]], [&](uint32_t other, Access access) {
        if (other != v) return;
        creates |= access == Access::kCreates;
        writes |= access == Access::kUpdates || access == Access::kOverwrites;
      });
      if (!writes || creates) continue;
      for (const uint32_t u : views_->of_buffer[view(v).buffer]) {
        if (view(u).offset != view(v).offset || view(u).sizes != view(v).sizes || view(u).strides != view(v).strides) {
          return false;
        }
      }
    }
    return true;
  }

  std::vector<int64_t> places_of(uint32_t n) const {
    std::vector<int64_t> places;
    for (const uint32_t v : views_->of_node[n]) {
      if (node_of_view_[v] != n) continue;
      places.push_back(value(view(v).offset));
      for (const Sym size : view(v).sizes) places.push_back(value(size));
      for (const Sym stride : view(v).strides) places.push_back(value(stride));
    }
    return places;
  }

  // An earlier section has stored the node's results. This section computes them again, only for the nodes that use
  // them.
  void discard_results(const Node& node, bool* once) {
    for_each_access(node, [&](uint32_t v, Access access) {
      if (access == Access::kCreates) section_.graph.buffers[view(v).buffer].group_local = true;
      *once &= access == Access::kReads || access == Access::kCreates;
    });
  }

  struct Views {
    std::vector<std::vector<uint32_t>> of_buffer, of_node;
  };

  Section section_;
  // Used only while nodes are taken.
  std::map<Sym, Sym> params_, pairs_;
  std::map<uint32_t, uint32_t> buffers_;
  std::shared_ptr<const Views> views_;        // all views that were taken, in order
  std::vector<uint32_t> node_of_view_;        // for each view: its node, or kNoNode if the section does not need it
  std::vector<bool> writes_;                  // for each view: whether its node writes it
  std::vector<bool> dropped_nodes_;           // for each node: whether the section leaves it out
  std::map<uint32_t, Join> joins_;            // by node
  std::vector<std::optional<Range>> ranges_;  // for each view, while it is narrowed
  bool dynamic_ = false;
};

class Cutter {
 public:
  Cutter(size_t nodes, std::vector<Section>* sections) : sections_(*sections), done_(nodes) {}

  bool run(PartialSection whole) {
    const uint32_t join = whole.last_join();
    if (join == kNoNode) {
      if (std::ssize(sections_) == kMaxSections) return false;
      bool once = true;
      sections_.push_back(whole.finish(&done_, &once));
      return once;
    }
    const size_t operands = whole.operands_of(join);
    if (static_cast<int64_t>(operands) > kMaxSections) return false;
    const auto keep = [&](PartialSection part, size_t operand) {
      bool empty = false;
      return part.keep_operand(join, operand, &empty) && (empty || run(std::move(part)));
    };
    for (size_t i = 0; i + 1 < operands; ++i) {
      if (!keep(whole, i)) return false;
    }
    return operands == 0 || keep(std::move(whole), operands - 1);
  }

  bool is_complete() const {
    return std::ranges::none_of(done_, [](const auto& places) { return places.empty(); });
  }

 private:
  std::vector<Section>& sections_;
  std::vector<std::set<std::vector<int64_t>>> done_;  // for each node: the positions computed so far
};

}  // namespace

bool is_join(Opcode opcode) {
  switch (expansion_of(opcode)) {
    case Expansion::kCat:
    case Expansion::kStack:
    case Expansion::kSliceBackward:
    case Expansion::kSelectBackward:
      return true;
    default:
      return false;
  }
}

bool find_sections(const Graph& graph, std::span<const int64_t> values, std::span<const uint32_t> nodes,
                   std::vector<Section>* sections) {
  sections->clear();
  PartialSection whole;
  if (!whole.add_nodes(graph, values, nodes)) return false;
  Cutter cutter(nodes.size(), sections);
  return cutter.run(std::move(whole)) && cutter.is_complete();
}

}  // namespace torch_remote::ir
