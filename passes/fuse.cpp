#include <algorithm>
#include <numeric>
#include <optional>
#include <queue>
#include <span>
#include <vector>

#include "ir/fusion/domain.h"
#include "ir/fusion/kernel_dims.h"
#include "ir/fusion/sections.h"
#include "ir/ops/op_table_generated.h"
#include "passes/pass.h"
#include "passes/rewrite.h"
#include "passes/shape_facts.h"

// fuse: forms groups of nodes, each of which the worker may execute as one kernel, and moves their nodes next to each
// other.
//
// Nodes are visited in order. A node joins the group that computes one of its operands if one loop nest can compute
// both (ir::IterationDomain). No node outside may have to run in between. If it joins several groups, these become one.
// So a chain of pointwise ops, a reduction of its result, and ops on the reduced rows are one group. Which elements are
// the same follows from the sizes of the run in which the graph was recorded (PassContext::sample). The worker checks
// this for other sizes; where it does not hold, it executes the nodes one by one.
//
// A group of one node stays only where our kernel is better than ATen's. docs/fusion.md has the rules and their
// effects. A group that joins tensors (cat) is executed in sections (ir/fusion/sections.h).
namespace torch_remote::passes {
namespace {

using ir::Arg;
using ir::Graph;
using ir::Group;
using ir::GroupKind;
using ir::IterationDomain;
using ir::kNoNode;
using ir::Node;

// A set of nodes of the graph.
class Bits {
 public:
  explicit Bits(size_t count) : words_((count + 63) / 64) {}
  void set(size_t i) { words_[i / 64] |= uint64_t{1} << (i % 64); }
  bool has(size_t i) const { return (words_[i / 64] >> (i % 64) & 1) != 0; }
  void add(const Bits& other) {
    for (size_t w = 0; w < words_.size(); ++w) words_[w] |= other.words_[w];
  }
  bool meets(const Bits& other) const {
    for (size_t w = 0; w < words_.size(); ++w) {
      if ((words_[w] & other.words_[w]) != 0) return true;
    }
    return false;
  }

 private:
  std::vector<uint64_t> words_;
};

// Whether the op divides integers, or may do so: then a divisor of 0 is an error.
bool may_divide_integers(const Graph& graph, const Node& node) {
  const auto is_integral = [&](const Arg& arg) {
    return arg.tag != ir::ArgTag::kView ||
           (!ir::is_float(graph.views[arg.a].dtype) && !ir::is_complex(graph.views[arg.a].dtype));
  };
  const auto tree = ir::op_desc(node.opcode).tree;
  return std::ranges::all_of(node.args, is_integral) && std::ranges::all_of(node.results, is_integral) &&
         (tree.empty() || std::ranges::any_of(tree, ir::divides_integers, &ir::ScalarNode::op));
}

bool reads_a_tensor(const Node& node) {
  bool reads = false;
  ir::for_each_access(node, [&](uint32_t, ir::Access access) { reads |= access == ir::Access::kReads; });
  return reads;
}

// Whether elements can make the op fail: indices that are out of range, matrices without a factorization, divisors of
// 0, probabilities above 1, infinite edges of bins.
bool may_fail_by_data(const Graph& graph, const Node& node) {
  const ir::OpDesc& desc = ir::op_desc(node.opcode);
  if (desc.flags & ir::kOpFailsByData) return reads_a_tensor(node);
  switch (desc.family) {
    case ir::Family::kPointwise:
      return may_divide_integers(graph, node);
    case ir::Family::kIndex:
    case ir::Family::kScatter:
    case ir::Family::kComposite:
    case ir::Family::kOpaque:
      return true;
    default:
      return false;
  }
}

// The number of nodes that write each buffer.
std::vector<uint32_t> count_writers(const Graph& graph) {
  std::vector<uint32_t> writers(graph.buffers.size());
  for (const Node& node : graph.nodes) {
    ir::for_each_view(node, [&](uint32_t view, bool writes) { writers[graph.views[view].buffer] += writes; });
  }
  return writers;
}

// Whether the op writes memory that existed before the program, or one of several values of memory that outlives it.
bool updates_in_place(const Graph& graph, const Node& node, std::span<const uint32_t> writers) {
  bool updates = node.in_place;
  ir::for_each_view(node, [&](uint32_t view, bool writes) {
    const uint32_t b = graph.views[view].buffer;
    const bool was_there = graph.buffers[b].kind == ir::BufferKind::kInput;
    updates |= writes && (was_there || (graph.buffers[b].survives && writers[b] > 1));
  });
  return updates;
}

// Finds, for each node, the nodes that must come before it: a reader and a writer of the same memory keep their order.
std::vector<std::vector<uint32_t>> find_dependencies(const Graph& graph) {
  struct Touched {
    uint32_t writer = kNoNode;
    std::vector<uint32_t> readers = {};  // since the last write
  };
  std::vector<Touched> buffers(graph.buffers.size());
  std::vector<std::vector<uint32_t>> before(graph.nodes.size());
  const std::vector<uint32_t> writers = count_writers(graph);
  uint32_t last_failing = kNoNode;
  std::vector<uint32_t> updated;  // in place since then
  for (uint32_t n = 0; n < graph.nodes.size(); ++n) {
    const Node& node = graph.nodes[n];
    ir::for_each_view(node, [&](uint32_t view, bool writes) {
      Touched& touched = buffers[graph.views[view].buffer];
      if (touched.writer != kNoNode && touched.writer != n) before[n].push_back(touched.writer);
      if (!writes) {
        touched.readers.push_back(n);
        return;
      }
      std::ranges::copy_if(touched.readers, std::back_inserter(before[n]),
                           [&](uint32_t reader) { return reader != n; });
      touched = {n, {}};
    });
    // In-place updates stay on their side of an op that may fail. An update after the failed op is undone if a later
    // update of the same tensor is skipped because of the failure. An update before the op is not undone.
    const bool fails = may_fail_by_data(graph, node), updates = updates_in_place(graph, node, writers);
    if (updates && last_failing != kNoNode) before[n].push_back(last_failing);
    if (fails) {
      std::ranges::copy(updated, std::back_inserter(before[n]));
      if (last_failing != kNoNode) before[n].push_back(last_failing);
      last_failing = n;
      updated.clear();
    }
    if (updates) updated.push_back(n);
    // An op with an effect that the client may notice stays after all earlier nodes, and before all later ones.
    if (!has_only_declared_effects(ir::op_desc(node.opcode))) {
      before[n].resize(n);
      std::iota(before[n].begin(), before[n].end(), 0);
      for (Touched& touched : buffers) touched = {n, {}};
    }
    std::ranges::sort(before[n]);
    const auto twice = std::ranges::unique(before[n]);
    before[n].erase(twice.begin(), twice.end());
  }
  return before;
}

// The bytes of each buffer; for an input, the bytes that the graph's views reach. Sizes of expanded views may be huge.
std::vector<int64_t> find_sizes(const Graph& graph, const std::vector<int64_t>& values) {
  constexpr double kMost = 1LL << 40;
  const auto clamped = [&](double bytes) { return static_cast<int64_t>(std::clamp(bytes, 0.0, kMost)); };
  std::vector<int64_t> sizes(graph.buffers.size(), 0);
  for (size_t b = 0; b < sizes.size(); ++b) {
    const ir::Sym nbytes = graph.buffers[b].nbytes;
    if (nbytes != ir::kNoSym) sizes[b] = clamped(static_cast<double>(values[nbytes]));
  }
  for (const ir::View& view : graph.views) {
    if (view.dynamic || graph.buffers[view.buffer].nbytes != ir::kNoSym) continue;
    const auto value = [&](ir::Sym symbol) { return static_cast<double>(values[symbol]); };
    double last = value(view.offset);
    for (size_t d = 0; d < view.sizes.size(); ++d) last += (value(view.sizes[d]) - 1) * value(view.strides[d]);
    sizes[view.buffer] =
        std::max(sizes[view.buffer], clamped((last + 1) * static_cast<double>(ir::item_size(view.dtype))));
  }
  return sizes;
}

// Nodes that are executed together.
using Unit = std::vector<uint32_t>;

// Computes how much memory an order of units needs.
class Memory {
 public:
  Memory(const Graph& graph, const std::vector<int64_t>& values) : graph_(graph), sizes_(find_sizes(graph, values)) {}

  // The most bytes that live at once, without inputs that survive.
  int64_t peak(const std::vector<Unit>& units) {
    last_.assign(sizes_.size(), kNoNode);
    first_.assign(sizes_.size(), kNoNode);
    std::vector<int64_t> change(units.size() + 1, 0);
    for (uint32_t u = 0; u < units.size(); ++u) {
      for (const uint32_t n : units[u]) {
        ir::for_each_view(graph_.nodes[n], [&](uint32_t view, bool) {
          const uint32_t b = graph_.views[view].buffer;
          if (first_[b] == kNoNode) first_[b] = u;
          last_[b] = u;
        });
      }
    }
    for (size_t b = 0; b < sizes_.size(); ++b) {
      const ir::Buffer& buffer = graph_.buffers[b];
      if (first_[b] == kNoNode || (buffer.kind == ir::BufferKind::kInput && buffer.survives)) continue;
      if (buffer.kind == ir::BufferKind::kInput) first_[b] = 0;
      const bool inner = first_[b] == last_[b] && units[last_[b]].size() > 1 && !buffer.survives;
      if (inner && buffer.kind == ir::BufferKind::kFresh) continue;
      change[first_[b]] += sizes_[b];
      if (!buffer.survives) change[last_[b] + 1] -= sizes_[b];
    }
    int64_t now = 0, most = -1;
    for (uint32_t u = 0; u < units.size(); ++u) {
      now += change[u];
      if (now <= most) continue;
      most = now;
      at_ = u;
    }
    return std::max<int64_t>(most, 0);
  }

  // For the order that `most` got last: the unit of several nodes that is the last user of most of that memory.
  // kNoNode: none.
  uint32_t largest_holder(const std::vector<Unit>& units) const {
    std::vector<int64_t> waiting(units.size(), 0);
    for (size_t b = 0; b < sizes_.size(); ++b) {
      if (last_[b] == kNoNode || graph_.buffers[b].survives || first_[b] > at_ || last_[b] < at_) continue;
      waiting[last_[b]] += sizes_[b];
    }
    uint32_t found = kNoNode;
    for (uint32_t u = at_; u < units.size(); ++u) {
      if (units[u].size() > 1 && waiting[u] != 0 && (found == kNoNode || waiting[u] > waiting[found])) found = u;
    }
    return found;
  }

 private:
  const Graph& graph_;
  const std::vector<int64_t> sizes_;
  std::vector<uint32_t> first_, last_;
  uint32_t at_ = 0;
};

class Fuser {
 public:
  Fuser(Graph& graph, const PassContext& context, std::vector<int64_t> values)
      : graph_(graph), context_(context), values_(std::move(values)), before_(find_dependencies(graph)) {}

  void run() {
    const auto count = static_cast<uint32_t>(graph_.nodes.size());
    most_nodes_ = static_cast<size_t>(context_.option("fuse.nodes"));
    most_joined_ = static_cast<size_t>(context_.option("fuse.joined"));
    cluster_of_.assign(count, kNoNode);
    after_.assign(count, Bits(count));
    for (uint32_t n = 0; n < count; ++n) {
      ir::KernelForm form;
      checks_indices_.push_back(ir::find_form(graph_, graph_.nodes[n], 0, &form) && ir::checks_indices(form));
    }
    for (uint32_t n = 0; n < count; ++n) {
      after_[n].set(n);
      for (const uint32_t b : before_[n]) after_[n].add(after_[b]);
      if (may_be_fused(graph_.nodes[n])) join(n);
    }
    drop_small();
    reorder(order_within_memory());
  }

 private:
  struct Cluster {
    std::vector<uint32_t> nodes;
    IterationDomain domain;
    uint32_t items = 1;
    bool joins = false;  // it is executed in sections (ir/fusion/sections.h), and has no domain
    GroupKind kind = GroupKind::kPointwise;
  };

  bool may_be_fused(const Node& node) const {
    if (!has_only_declared_effects(ir::op_desc(node.opcode))) return false;
    // A worker without a kernel for the node would execute the whole group node by node.
    if (context_.worker.compiles_for_gpu() && ir::is_sequential(ir::expansion_of(node.opcode))) return false;
    bool dtypes = true;
    ir::for_each_view(node, [&](uint32_t view, bool) {
      dtypes &= !graph_.views[view].dynamic && context_.worker.supports(graph_.views[view].dtype);
    });
    return dtypes;
  }

  // Adds the node to the groups that compute its operands, as far as they fit together; otherwise the node begins a
  // group.
  void join(uint32_t n) {
    std::vector<uint32_t> makers;
    ir::for_each_view(graph_.nodes[n], [&](uint32_t view, bool) {
      for (const uint32_t b : before_[n]) {
        const uint32_t cluster = cluster_of_[b];
        if (cluster == kNoNode || std::ranges::count(makers, cluster) != 0 || !touches(b, graph_.views[view].buffer))
          continue;
        makers.push_back(cluster);
      }
    });
    Cluster made{{n}, IterationDomain(graph_, values_), ir::count_items(graph_.nodes[n])};
    bool alone = true;
    for (const uint32_t maker : makers) {
      const Cluster& other = clusters_[maker];
      if (other.items != made.items || !is_worth_joining(n, maker)) continue;
      std::vector<uint32_t> nodes;
      std::ranges::merge(other.nodes, made.nodes, std::back_inserter(nodes));
      const bool joins = other.joins || made.joins || is_join(n);
      if (nodes.size() > (joins ? most_joined_ : most_nodes_) || has_node_between(nodes)) continue;
      Cluster both{std::move(nodes), alone ? other.domain : IterationDomain(graph_, values_), made.items};
      both.joins = joins;
      if (!fits(both, alone && !both.joins ? std::vector<uint32_t>{n} : both.nodes)) continue;
      for (const uint32_t node : other.nodes) cluster_of_[node] = kNoNode;
      clusters_[maker].nodes.clear();
      made = std::move(both);
      alone = false;
    }
    made.joins |= is_join(n);
    if (alone && !fits(made, made.nodes)) return;
    for (const uint32_t node : made.nodes) cluster_of_[node] = static_cast<uint32_t>(clusters_.size());
    merge_dependencies(made.nodes);
    clusters_.push_back(std::move(made));
  }

  bool is_join(uint32_t n) const { return ir::is_join(graph_.nodes[n].opcode); }

  // Whether the nodes may be executed together although an index may be out of bounds.
  bool may_fail(const std::vector<uint32_t>& nodes) const {
    return std::ranges::none_of(nodes, [&](uint32_t n) { return checks_indices_[n]; }) ||
           ir::can_reexecute(graph_, nodes) || ir::indices_exist_before(graph_, nodes);
  }

  // Whether one kernel can compute the cluster's nodes. All nodes but `added` are in its domain already.
  bool fits(Cluster& cluster, const std::vector<uint32_t>& added) const {
    if (!may_fail(cluster.nodes)) return false;
    if (cluster.joins) return fits_in_sections(cluster);
    return std::ranges::all_of(added, [&](uint32_t node) { return cluster.domain.add(node); }) &&
           has_kernel(cluster.domain);
  }

  // Whether a kernel can have the domain's dims.
  static bool has_kernel(const IterationDomain& domain) { return ir::KernelDims(domain).find().ok(); }

  bool fits_in_sections(Cluster& cluster) const {
    std::vector<ir::Section> sections;
    if (cluster.items != 1 || !ir::find_sections(graph_, values_, cluster.nodes, &sections)) return false;
    cluster.kind = GroupKind::kPointwise;
    for (const ir::Section& section : sections) {
      IterationDomain domain(section.graph, section.values);
      for (uint32_t n = 0; n < section.nodes.size(); ++n) {
        if (!domain.add(n)) return false;
      }
      if (!has_kernel(domain)) return false;
      cluster.kind = std::max(cluster.kind, kind_of(domain));
    }
    return true;
  }

  int64_t points(uint32_t view) const {
    int64_t points = 1;
    for (const ir::Sym size : graph_.views[view].sizes) points *= values_[size];
    return points;
  }

  // ATen copies joined tensors as fast, so the group must compute at least a quarter of the result. (A cache that grows
  // by a row does not qualify. Its group would have to be checked again in each step.)
  bool is_worth_joining(uint32_t n, uint32_t maker) const {
    if (!is_join(n)) return true;
    int64_t made = 0, all = 0;
    const auto is_made = [&](uint32_t buffer) {
      return std::ranges::any_of(clusters_[maker].nodes, [&](uint32_t node) {
        bool found = false;
        ir::for_each_view(graph_.nodes[node],
                          [&](uint32_t view, bool writes) { found |= writes && graph_.views[view].buffer == buffer; });
        return found;
      });
    };
    ir::for_each_view(graph_.nodes[n], [&](uint32_t view, bool writes) {
      if (writes) {
        all += points(view);
      } else if (is_made(graph_.views[view].buffer)) {
        made += points(view);
      }
    });
    return made >= all / 4;
  }

  bool touches(uint32_t node, uint32_t buffer) const {
    bool found = false;
    ir::for_each_view(graph_.nodes[node], [&](uint32_t view, bool) { found |= graph_.views[view].buffer == buffer; });
    return found;
  }

  // Whether a node outside would have to come after one of them and before another.
  bool has_node_between(const std::vector<uint32_t>& nodes) const {
    Bits inside(graph_.nodes.size());
    for (const uint32_t n : nodes) inside.set(n);
    for (const uint32_t n : nodes) {
      for (const uint32_t b : before_[n]) {
        if (!inside.has(b) && after_[b].meets(inside)) return true;
      }
    }
    return false;
  }

  // The nodes are executed together: what comes after one of them comes after everything that any of them needs.
  void merge_dependencies(const std::vector<uint32_t>& nodes) {
    if (nodes.size() == 1) return;
    Bits inside(graph_.nodes.size()), all(graph_.nodes.size());
    for (const uint32_t n : nodes) {
      inside.set(n);
      all.add(after_[n]);
    }
    for (uint32_t n = nodes.front(); n <= nodes.back(); ++n) {
      if (after_[n].meets(inside)) after_[n].add(all);
    }
  }

  // Whether neighbors in the result are chosen by different indices.
  static bool indices_vary_inside(const IterationDomain::Member& member) {
    const auto made = std::ranges::find_if(member.accesses, [](const auto& access) { return access.part.writes; });
    for (uint32_t d = 0; d < made->strides.size(); ++d) {
      if (made->strides[d] != 1) continue;
      return std::ranges::any_of(member.accesses, [&](const IterationDomain::Access& access) {
        return access.part.is_index && access.strides[d] != 0;
      });
    }
    return false;
  }

  // A kernel for one node pays if it needs less memory traffic than ATen's, or has vector code where ATen's has none.
  bool is_better_alone(const Cluster& cluster) const {
    switch (ir::expansion_of(graph_.nodes[cluster.nodes[0]].opcode)) {
      case ir::Expansion::kBatchNorm:  // in eval mode it is like any pointwise op
        return cluster.domain.members()[0].reduces != ir::ReductionKind::kNothing;
      case ir::Expansion::kIndexSelect:  // ATen copies whole rows as fast
        return indices_vary_inside(cluster.domain.members()[0]);
      case ir::Expansion::kBatchNormBackward:
      case ir::Expansion::kCumprod:
      case ir::Expansion::kCumsum:
      case ir::Expansion::kEmbeddingBackward:
      case ir::Expansion::kGather:
      case ir::Expansion::kTake:
      case ir::Expansion::kIndex:
      case ir::Expansion::kIndexAdd:
      case ir::Expansion::kIndexPut:
      case ir::Expansion::kFusedAdam:
      case ir::Expansion::kFusedAdamW:
      case ir::Expansion::kFusedSgd:
      case ir::Expansion::kGroupNormBackward:
      case ir::Expansion::kGelu:
      case ir::Expansion::kGeluBackward:
      case ir::Expansion::kLogCumSumExp:
      case ir::Expansion::kLogSumExp:
      case ir::Expansion::kSoftmax:
      case ir::Expansion::kLogSoftmax:
      case ir::Expansion::kSoftmaxBackward:
      case ir::Expansion::kLogSoftmaxBackward:
        return true;
      case ir::Expansion::kMatmul:
        return !is_skinny_matmul(graph_.nodes[cluster.nodes[0]]);
      default:
        return false;
    }
  }

  // The worker says whether it has hand-written kernels for attention. It checks sizes and dtypes itself.
  bool is_attention(const Node& node) const {
    return context_.worker.supports(GroupKind::kAttention) &&
           (node.opcode == ir::ops::remote_attention || node.opcode == ir::ops::remote_attention_backward);
  }

  // A few rows times a matrix whose columns are contiguous: CPU workers have loops for these. The worker decides where
  // they are faster than the library.
  bool is_skinny_matmul(const Node& node) const {
    const bool adds = node.opcode == ir::ops::aten_addmm;
    if (!context_.worker.supports(GroupKind::kMatmul) || !context_.worker.compiles_for_cpu() ||
        (node.opcode != ir::ops::aten_mm && !adds) || !may_be_fused(node)) {
      return false;
    }
    const ir::Arg &left_arg = node.args[adds ? 1 : 0], &right_arg = node.args[adds ? 2 : 1];
    if (left_arg.tag != ir::ArgTag::kView || right_arg.tag != ir::ArgTag::kView) return false;
    const ir::View &left = graph_.views[left_arg.a], &right = graph_.views[right_arg.a];
    if (left.sizes.size() != 2 || right.sizes.size() != 2) return false;
    using enum ir::DType;
    const bool float_type = left.dtype == kFloat32 || left.dtype == kBFloat16 || left.dtype == kFloat16;
    const int64_t rows = values_[left.sizes[0]];
    return float_type && rows >= 1 && rows <= ir::kMaxMatmulRows && values_[left.strides[1]] == 1 &&
           values_[right.strides[0]] == 1;
  }

  // A matmul that CPU workers may execute with another library than ATen's. The worker decides which one is faster.
  bool is_library_matmul(const Node& node) const {
    const bool batches = node.opcode == ir::ops::aten_bmm || node.opcode == ir::ops::aten_baddbmm;
    const bool adds = node.opcode == ir::ops::aten_addmm || node.opcode == ir::ops::aten_baddbmm;
    if (!context_.worker.supports(GroupKind::kMatmul) || !context_.worker.compiles_for_cpu() ||
        (node.opcode != ir::ops::aten_mm && !adds && !batches) || !may_be_fused(node)) {
      return false;
    }
    const ir::Arg &left_arg = node.args[adds ? 1 : 0], &right_arg = node.args[adds ? 2 : 1];
    if (left_arg.tag != ir::ArgTag::kView || right_arg.tag != ir::ArgTag::kView) return false;
    const ir::View &left = graph_.views[left_arg.a], &right = graph_.views[right_arg.a];
    if (left.dtype != ir::DType::kFloat32 || left.sizes.empty() || right.sizes.empty()) return false;
    const auto multiplications =
        static_cast<double>(points(left_arg.a)) * static_cast<double>(values_[right.sizes.back()]);
    return multiplications >= ir::kMinLibraryMultiplications;
  }

  // Whether neighbors of one operand are far apart in another one. A kernel packs such operands; ATen's loops mostly do
  // not.
  static bool is_transposed(const IterationDomain& domain) {
    constexpr int64_t kMany = 64;
    std::vector<const IterationDomain::Access*> accesses;
    for (const IterationDomain::Member& member : domain.members()) {
      for (const IterationDomain::Access& access : member.accesses) accesses.push_back(&access);
    }
    const auto runs_along = [&](const IterationDomain::Access& access, uint32_t dim,
                                const IterationDomain::Access& other) {
      return domain.sizes()[dim] >= kMany && access.strides[dim] == 1 && other.strides[dim] >= kMany;
    };
    for (const IterationDomain::Access* x : accesses) {
      for (const IterationDomain::Access* y : accesses) {
        bool x_runs = false, y_runs = false;
        for (uint32_t d = 0; d < domain.sizes().size(); ++d) {
          x_runs |= runs_along(*x, d, *y);
          y_runs |= runs_along(*y, d, *x);
        }
        if (x_runs && y_runs) return true;
      }
    }
    return false;
  }

  void drop_small() {
    for (Cluster& cluster : clusters_) {
      const bool drop = cluster.nodes.empty() ||
                        (cluster.nodes.size() == 1 &&
                         (cluster.joins || (!is_better_alone(cluster) && !is_transposed(cluster.domain)))) ||
                        !context_.worker.supports(kind_of(cluster));
      if (!drop) continue;
      for (const uint32_t n : cluster.nodes) cluster_of_[n] = kNoNode;
      cluster.nodes.clear();
    }
  }

  static GroupKind kind_of(const Cluster& cluster) {
    if (cluster.items > 1) return GroupKind::kMultiTensor;
    return cluster.joins ? cluster.kind : kind_of(cluster.domain);
  }

  static GroupKind kind_of(const IterationDomain& domain) {
    bool columns = false, totals = false;
    for (const IterationDomain::Member& member : domain.members()) {
      columns |= member.reduces == ir::ReductionKind::kColumns;
      totals |= member.reduces == ir::ReductionKind::kRows || member.reduces == ir::ReductionKind::kAll;
    }
    return columns ? GroupKind::kRowwise : totals ? GroupKind::kReduce : GroupKind::kPointwise;
  }

  // A group waits for everything that it needs, and keeps it alive. If this takes more memory than executing the nodes
  // one by one, the group is halved.
  std::vector<Unit> order_within_memory() {
    constexpr int kMaxCuts = 64;
    constexpr int64_t kLittle = 1 << 20;
    Memory memory(graph_, values_);
    std::vector<Unit> units(graph_.nodes.size());
    for (uint32_t n = 0; n < units.size(); ++n) units[n] = {n};
    const int64_t alone = memory.peak(units), allowed = alone + std::max(alone / 32, kLittle);
    units = order();
    for (int cuts = 0; cuts < kMaxCuts && memory.peak(units) > allowed; ++cuts) {
      const uint32_t unit = memory.largest_holder(units);
      if (unit == kNoNode) break;
      halve(clusters_[cluster_of_[units[unit].back()]]);
      units = order();
    }
    return units;
  }

  // The second half comes after the first one, and what needs the second half comes after both, so that an order
  // exists.
  void halve(Cluster& cluster) {
    const Unit all = std::exchange(cluster.nodes, {});
    const uint32_t items = cluster.items;
    for (const uint32_t n : all) cluster_of_[n] = kNoNode;
    const auto middle = all.begin() + static_cast<std::ptrdiff_t>(all.size() / 2);
    for (const Unit& half : {Unit(all.begin(), middle), Unit(middle, all.end())}) {
      Cluster made{half, IterationDomain(graph_, values_), items};
      made.joins = std::ranges::any_of(half, [&](uint32_t n) { return is_join(n); });
      if (half.size() == 1 || !fits(made, half) || !context_.worker.supports(kind_of(made))) continue;
      for (const uint32_t n : half) cluster_of_[n] = static_cast<uint32_t>(clusters_.size());
      clusters_.push_back(std::move(made));
    }
  }

  // Returns the units in order. A group takes the position of its last node, as far as dependencies allow it.
  std::vector<Unit> order() const {
    const auto count = static_cast<uint32_t>(graph_.nodes.size());
    // A unit is a group or a node; its last node identifies it.
    const auto unit_of = [&](uint32_t n) {
      return cluster_of_[n] == kNoNode ? n : clusters_[cluster_of_[n]].nodes.back();
    };
    std::vector<std::vector<uint32_t>> next(count);
    std::vector<uint32_t> waits(count);
    for (uint32_t n = 0; n < count; ++n) {
      for (const uint32_t b : before_[n]) {
        if (unit_of(b) == unit_of(n)) continue;
        next[unit_of(b)].push_back(unit_of(n));
        ++waits[unit_of(n)];
      }
    }
    std::priority_queue<uint32_t, std::vector<uint32_t>, std::greater<>> ready;
    for (uint32_t n = 0; n < count; ++n) {
      if (unit_of(n) == n && waits[n] == 0) ready.push(n);
    }
    std::vector<Unit> units;
    while (!ready.empty()) {
      const uint32_t unit = ready.top();
      ready.pop();
      units.push_back(cluster_of_[unit] == kNoNode ? Unit{unit} : clusters_[cluster_of_[unit]].nodes);
      for (const uint32_t other : next[unit]) {
        if (--waits[other] == 0) ready.push(other);
      }
    }
    return units;
  }

  void reorder(const std::vector<Unit>& units) {
    const int64_t limit = context_.option("fuse.limit");
    std::vector<Node> nodes;
    nodes.reserve(graph_.nodes.size());
    for (const Unit& unit : units) {
      const auto first = static_cast<uint32_t>(nodes.size());
      for (const uint32_t n : unit) nodes.push_back(std::move(graph_.nodes[n]));
      const uint32_t cluster = cluster_of_[unit.back()];
      std::optional<GroupKind> kind;
      if (cluster != kNoNode) {
        kind = kind_of(clusters_[cluster]);
      } else if (is_attention(nodes.back())) {
        kind = GroupKind::kAttention;
      } else if (is_skinny_matmul(nodes.back()) || is_library_matmul(nodes.back())) {
        kind = GroupKind::kMatmul;
      }
      if (!kind || static_cast<int64_t>(graph_.groups.size()) >= limit) continue;
      graph_.groups.push_back({first, static_cast<uint32_t>(nodes.size()) - 1, *kind, 0});
    }
    graph_.nodes = std::move(nodes);
  }

  Graph& graph_;
  const PassContext& context_;
  const std::vector<int64_t> values_;
  const std::vector<std::vector<uint32_t>> before_;
  std::vector<Bits> after_;  // for each node: the node, and all nodes that must come before it
  std::vector<uint32_t> cluster_of_;
  std::vector<bool> checks_indices_;  // for each node
  std::vector<Cluster> clusters_;
  size_t most_nodes_ = 0;
  // The limit for a group that joins tensors. Each section has all of its nodes, and all sections are found again when
  // a node is added.
  size_t most_joined_ = 0;
};

uint8_t properties_of(const Graph& graph, const Group& group) {
  bool contiguous = true, aligned = true;
  for (uint32_t n = group.first; n <= group.last; ++n) {
    ir::for_each_view(graph.nodes[n], [&](uint32_t index, bool) {
      const ir::View& view = graph.views[index];
      int64_t offset = 0;
      contiguous &= is_contiguous(graph, view);
      aligned &= graph.is_constant(view.offset, &offset) &&
                 offset % 16 * static_cast<int64_t>(ir::item_size(view.dtype)) % 16 == 0;
    });
  }
  return static_cast<uint8_t>((contiguous ? ir::kGroupContiguous : 0) | (aligned ? ir::kGroupAligned : 0));
}

// Buffers that only one group uses, and that do not survive, need no memory.
void mark_buffers(Graph& graph) {
  constexpr uint32_t kSeveral = kNoNode - 1;
  std::vector<uint32_t> user(graph.buffers.size(), kNoNode);  // a group; kSeveral: other users, too
  size_t next = 0;
  for (uint32_t i = 0; i < graph.nodes.size(); ++i) {
    while (next < graph.groups.size() && graph.groups[next].last < i) ++next;
    const bool grouped = next < graph.groups.size() && graph.groups[next].first <= i;
    const uint32_t group = grouped ? static_cast<uint32_t>(next) : kSeveral;
    ir::for_each_view(graph.nodes[i], [&](uint32_t view, bool) {
      uint32_t& known = user[graph.views[view].buffer];
      known = known == kNoNode || known == group ? group : kSeveral;
    });
  }
  for (size_t b = 0; b < user.size(); ++b) {
    ir::Buffer& buffer = graph.buffers[b];
    buffer.group_local = user[b] < kSeveral && buffer.kind == ir::BufferKind::kFresh && !buffer.survives;
  }
}

}  // namespace

Status fuse(Graph& graph, const PassContext& context) {
  graph.drop_groups();
  if (!context.fusion || context.worker.group_kind_mask == 0 || context.sample.size() != graph.params) return {};
  std::vector<int64_t> values;
  if (Status status = ir::evaluate(graph, context.sample.data(), &values); !status.ok()) return status;
  Fuser(graph, context, std::move(values)).run();
  for (Group& group : graph.groups) group.properties = properties_of(graph, group);
  mark_buffers(graph);
  return {};
}

}  // namespace torch_remote::passes
