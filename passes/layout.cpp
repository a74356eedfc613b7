#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "ir/ops/op_table_generated.h"
#include "passes/pass.h"
#include "passes/shape_facts.h"

// layout: gives images that only this graph sees channels-last strides, where that makes its convolutions faster.
//
// oneDNN convolves channels-last images directly. It reorders contiguous (NCHW) images first, and reorders its results
// back. So this pass changes the strides of values between convolutions, together with connected results of ops that
// work in any layout. Values that a user can see keep their strides from CPU; the op that computes or reads them
// reorders. No node is added: views state where elements are, so the meaning of the graph stays the same.
//
// The pass estimates for which chains of values this pays. It uses the sizes of the run in which the graph was recorded
// (PassContext::sample). docs/fusion.md has the numbers.
namespace torch_remote::passes {
namespace {

using ir::Arg;
using ir::ArgTag;
using ir::ExprKind;
using ir::Graph;
using ir::Node;
using ir::Sym;
using ir::View;

constexpr uint32_t kNoView = 0xFFFFFFFF;

// The share of its time that a convolution saves with channels-last images, and the speed of reordering an image.
constexpr double kGain = 0.25;
constexpr double kMultiplicationsPerSecond = 8e10, kBytesPerSecond = 4e9;

class Layout {
 public:
  Layout(Graph& graph, std::vector<int64_t> values, bool has_bfloat16)
      : graph_(graph), values_(std::move(values)), has_bfloat16_(has_bfloat16) {}

  void run() {
    find_images();
    for (const Node& node : graph_.nodes) keep_contiguous(node);
    while (std::ranges::any_of(graph_.nodes, [this](const Node& node) { return keep_same_layout(node); })) {
    }
    chain_of_.resize(graph_.buffers.size());
    std::iota(chain_of_.begin(), chain_of_.end(), 0);
    for (const Node& node : graph_.nodes) join(node);
    gains_.assign(graph_.buffers.size(), 0);
    for (const Node& node : graph_.nodes) estimate_gain(node);
    for (uint32_t b = 0; b < graph_.buffers.size(); ++b) {
      if (image_[b] != kNoView && gains_[find(b)] > 0) make_channels_last(image_[b]);
    }
  }

 private:
  // Finds the buffers whose layout may change: they are not visible outside, and the graph sees them through one view.
  void find_images() {
    image_.assign(graph_.buffers.size(), kNoView);
    std::vector<uint32_t> views(graph_.buffers.size(), 0);
    for (uint32_t v = 0; v < graph_.views.size(); ++v) {
      const uint32_t b = graph_.views[v].buffer;
      const ir::Buffer& buffer = graph_.buffers[b];
      const bool may = ++views[b] == 1 && buffer.kind == ir::BufferKind::kFresh && buffer.written_once &&
                       !buffer.survives && is_contiguous_image(graph_.views[v]);
      image_[b] = may ? v : kNoView;
    }
  }

  // Looks at the strides in the known run. The graph may leave them open, because they depend on the inputs.
  bool is_contiguous_image(const View& view) const {
    if (view.dynamic || view.sizes.size() != 4 || values_[view.offset] != 0) return false;
    int64_t expected = 1;
    for (size_t d = 4; d-- > 0;) {
      if (size(view, d) != 1 && values_[view.strides[d]] != expected) return false;
      expected *= size(view, d);
    }
    return size(view, 1) > 1 && size(view, 2) * size(view, 3) > 1;
  }

  int64_t size(const View& view, size_t dim) const { return values_[view.sizes[dim]]; }

  double elements(uint32_t view) const {
    double count = 1;
    for (const Sym size : graph_.views[view].sizes) count *= static_cast<double>(values_[size]);
    return count;
  }
  // Seconds to reorder the image.
  double reorder_seconds(uint32_t view) const {
    return elements(view) * static_cast<double>(ir::item_size(graph_.views[view].dtype)) / kBytesPerSecond;
  }

  bool is_image(uint32_t view) const { return image_[graph_.views[view].buffer] != kNoView; }

  // --- nodes ---------------------------------------------------------------------------------------------------------

  // For other ranks and dtypes the gain is unknown.
  bool is_convolution(const Node& node) const {
    if (node.opcode != ir::ops::aten_convolution) return false;
    for (const Arg* arg : {&node.args[0], &node.args[1], &node.results[0]}) {
      if (arg->tag != ArgTag::kView) return false;
      const View& view = graph_.views[arg->a];
      const bool half = view.dtype == ir::DType::kBFloat16 && has_bfloat16_;
      if (view.sizes.size() != 4 || (view.dtype != ir::DType::kFloat32 && !half)) return false;
    }
    return node.args[6].tag == ArgTag::kBool;
  }

  // Whether the op works in any layout, and gives its results the layout of its operands.
  bool works_in_any_layout(const Node& node) const {
    const ir::OpDesc& desc = ir::op_desc(node.opcode);
    switch (node.opcode) {
      case ir::ops::aten_cat:
      case ir::ops::aten_max_pool2d_with_indices:
      case ir::ops::aten_native_group_norm:
      case ir::ops::aten__native_batch_norm_legit_no_training:
        return true;
      case ir::ops::aten_native_batch_norm:
        return node.args[5].tag == ArgTag::kBool && values_[node.args[5].a] == 0;
      default:
        return desc.family == ir::Family::kPointwise && (desc.flags & ir::kOpRandom) == 0 &&
               std::ranges::none_of(desc.args, [](const ir::ArgDesc& arg) { return arg.writes; });
    }
  }

  // Whether the op reads images of any layout equally fast, and its result is not an image.
  static bool reads_any(const Node& node) {
    return node.opcode == ir::ops::aten_mean_dim || node.opcode == ir::ops::aten__adaptive_avg_pool2d;
  }

  void keep_contiguous(const Node& node) {
    if (works_in_any_layout(node)) return;
    const bool convolves = is_convolution(node), reads = reads_any(node);
    const auto keep = [&](uint32_t view) { image_[graph_.views[view].buffer] = kNoView; };
    for (size_t i = 0; i < node.args.size(); ++i) {
      if ((convolves || reads) && i == 0) continue;
      auto visit = [&](uint32_t view, bool) { keep(view); };
      ir::internal::visit_views(node.args[i], false, visit);
    }
    if (!convolves) ir::for_each_result_view(node, [&](uint32_t view) { keep(view); });
  }

  // If an in-place op fails, its result has its operand's bytes, so both need the same layout. Returns true if this
  // changed anything.
  bool keep_same_layout(const Node& node) {
    if (!node.in_place || is_image(node.args[0].a) == is_image(node.results[0].a)) return false;
    for (const uint32_t view : {node.args[0].a, node.results[0].a}) image_[graph_.views[view].buffer] = kNoView;
    return true;
  }

  // --- chains --------------------------------------------------------------------------------------------------------

  uint32_t find(uint32_t buffer) {
    while (chain_of_[buffer] != buffer) buffer = chain_of_[buffer] = chain_of_[chain_of_[buffer]];
    return buffer;
  }

  void join(const Node& node) {
    if (!is_convolution(node) && !works_in_any_layout(node)) return;
    uint32_t first = kNoView;
    ir::for_each_view(node, [&](uint32_t view, bool) {
      if (!is_image(view)) return;
      if (first == kNoView) first = view;
      chain_of_[find(graph_.views[view].buffer)] = find(graph_.views[first].buffer);
    });
  }

  void estimate_gain(const Node& node) {
    const bool convolves = is_convolution(node);
    if (!convolves && !works_in_any_layout(node)) return;
    uint32_t chain = kNoView;
    double turned = 0;
    ir::for_each_view(node, [&](uint32_t view, bool) {
      if (is_image(view)) {
        chain = find(graph_.views[view].buffer);
      } else if (graph_.views[view].sizes.size() == 4 && is_contiguous_image(graph_.views[view])) {
        turned += reorder_seconds(view);
      }
    });
    if (chain == kNoView) return;
    if (convolves) {
      const uint32_t weights = node.args[1].a;
      // Weights that do not change are reordered once, others in each run. Their reordering is not counted.
      const bool transposed = values_[node.args[6].a] != 0;
      const View& places = graph_.views[transposed ? node.args[0].a : node.results[0].a];
      const double work = elements(weights) * static_cast<double>(size(places, 0)) *
                          static_cast<double>(size(places, 2)) * static_cast<double>(size(places, 3));
      gains_[chain] += kGain * work / kMultiplicationsPerSecond;
      if (is_contiguous_image(graph_.views[weights])) turned -= reorder_seconds(weights);
    }
    gains_[chain] -= turned;
  }

  void make_channels_last(uint32_t index) {
    const auto times = [&](Sym a, Sym b) { return graph_.expr(ExprKind::kMul, a, b); };
    const Sym columns = graph_.views[index].sizes[3], rows = graph_.views[index].sizes[2],
              channels = graph_.views[index].sizes[1];
    const Sym row = times(columns, channels);
    graph_.views[index].offset = graph_.constant(0);
    graph_.views[index].strides = {times(rows, row), graph_.constant(1), row, channels};
  }

  Graph& graph_;
  const std::vector<int64_t> values_;
  const bool has_bfloat16_;         // oneDNN convolves images of this dtype
  std::vector<uint32_t> image_;     // for each buffer: its view, if its layout may change
  std::vector<uint32_t> chain_of_;  // for each buffer: another buffer with the same layout
  std::vector<double> gains_;       // for each chain: seconds
};

}  // namespace

Status layout(Graph& graph, const PassContext& context) {
  graph.drop_groups();
  // The costs are those of oneDNN on x86-64.
  if (!context.fusion || !context.worker.target().starts_with("x86-64") || context.sample.size() != graph.params)
    return {};
  const bool convolves =
      std::ranges::any_of(graph.nodes, [](const Node& node) { return node.opcode == ir::ops::aten_convolution; });
  if (!convolves) return {};
  std::vector<int64_t> values;
  if (Status status = ir::evaluate(graph, context.sample.data(), &values); !status.ok()) return status;
  Layout(graph, std::move(values), context.worker.target() == "x86-64-v4").run();
  return {};
}

}  // namespace torch_remote::passes
