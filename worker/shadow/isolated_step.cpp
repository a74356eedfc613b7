#include "worker/shadow/isolated_step.h"

#include <algorithm>
#include <cmath>

#include "ir/checking/compact.h"

namespace torch_remote::worker {
namespace {

double elements(const ir::View& view, std::span<const int64_t> values) {
  double product = 1;
  for (const ir::Sym size : view.sizes) product *= static_cast<double>(values[size]);
  return product;
}

// 60 ns an element, and 1 ns a multiplication. A matmul of [m, k] and [k, n] makes as many multiplications as the
// square root of the product of the three sizes.
double reference_ns(const ir::Graph& graph, const ir::Node& node, std::span<const int64_t> values) {
  double most = 0, product = 1;
  ir::for_each_view(node, [&](uint32_t view, bool) {
    const double count = elements(graph.views[view], values);
    most = std::max(most, count);
    product *= std::max(count, 1.0);
  });
  const bool multiplies = ir::op_desc(node.opcode).family == ir::Family::kMatmul;
  return 60 * most + (multiplies ? std::sqrt(product) : 0);
}

}  // namespace

std::optional<IsolatedStep> isolate_step(const ir::Graph& graph, std::span<const int64_t> values, uint32_t first,
                                         uint32_t last) {
  const std::span<const ir::Node> nodes = std::span(graph.nodes).subspan(first, last - first);
  IsolatedStep step;
  std::vector<bool> created(graph.buffers.size());
  bool dynamic = false;
  for (const ir::Node& node : nodes) {
    ir::for_each_access(node, [&](uint32_t view, ir::Access access) {
      dynamic |= graph.views[view].dynamic;
      if (access == ir::Access::kCreates) created[graph.views[view].buffer] = true;
    });
    step.reference_ns += reference_ns(graph, node, values);
  }
  if (dynamic) return std::nullopt;
  ir::Remaining remaining;
  step.graph = ir::compact(graph, nodes, &remaining);
  for (const uint32_t param : remaining.params) step.params.push_back(values[param]);
  std::vector<uint32_t> input_of(graph.buffers.size(), ir::kNoBuffer);
  for (size_t i = 0; i < remaining.buffers.size(); ++i) {
    const uint32_t b = remaining.buffers[i];
    ir::Buffer& buffer = step.graph.buffers[i];
    buffer.may_reuse = ir::kNoBuffer;
    // Without memory, unless the group's nodes execute one by one.
    const bool local = graph.buffers[b].group_local && nodes.size() > 1;
    if (created[b] || local) {
      buffer.survives = !local;
      if (buffer.survives) step.created.push_back(b);
      continue;
    }
    buffer = {ir::BufferKind::kInput};
    buffer.survives = true;
    input_of[b] = static_cast<uint32_t>(step.inputs.size());
    step.inputs.push_back(b);
  }
  std::vector<bool> seen(step.graph.views.size());
  for (uint32_t n = 0; n < step.graph.nodes.size(); ++n) {
    uint32_t result = 0;
    ir::for_each_view(step.graph.nodes[n], [&](uint32_t view, bool writes) {
      if (!writes) return;
      const uint32_t b = step.graph.views[view].buffer;
      if (step.graph.buffers[b].survives && !seen[view]) {
        seen[view] = true;
        step.written.push_back({n, result, view, remaining.buffers[b]});
        const uint32_t input = input_of[remaining.buffers[b]];
        if (input != ir::kNoBuffer && std::ranges::find(step.updated, input) == step.updated.end()) {
          step.updated.push_back(input);
        }
      }
      ++result;
    });
  }
  if (step.written.empty()) return std::nullopt;
  return step;
}

}  // namespace torch_remote::worker
