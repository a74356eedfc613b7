#include "tools/viz/memory.h"

#include <algorithm>
#include <set>
#include <utility>

#include "ir/analysis.h"
#include "ir/arena.h"

namespace torch_remote::tools {
namespace {

constexpr uint64_t kLargest = uint64_t{1} << 48;  // bound on a size, so that sums cannot overflow

uint64_t size_of(const ir::Buffer& buffer, const std::vector<int64_t>& values) {
  if (values.empty() || buffer.nbytes == ir::kNoSym) return values.empty() ? 1 : 0;
  return static_cast<uint64_t>(std::clamp<int64_t>(values[buffer.nbytes], 0, static_cast<int64_t>(kLargest)));
}

uint64_t size_of(const ir::View& view, const std::vector<int64_t>& values) {
  if (view.dynamic) return 0;
  uint64_t bytes = ir::item_size(view.dtype);
  for (const ir::Sym size : view.sizes) {
    const int64_t value = values[size];
    if (value <= 0) return 0;
    if (bytes > kLargest / static_cast<uint64_t>(value)) return kLargest;
    bytes *= static_cast<uint64_t>(value);
  }
  return bytes;
}

}  // namespace

MemoryChart memory_chart(const ir::Graph& graph, const std::vector<int64_t>& values) {
  MemoryChart chart;
  chart.sizes_known = !values.empty();
  chart.live.resize(graph.nodes.size());
  const auto last_node = static_cast<uint32_t>(graph.nodes.size()) - 1;
  std::vector<ir::Lifetime> lifetimes = ir::find_lifetimes(graph);
  std::vector<bool> shown(graph.buffers.size());
  std::vector<uint64_t> nbytes(graph.buffers.size());
  for (uint32_t b = 0; b < graph.buffers.size(); ++b) {
    const ir::Buffer& buffer = graph.buffers[b];
    shown[b] = buffer.kind == ir::BufferKind::kFresh && lifetimes[b].first != ir::kNoNode;
    if (buffer.survives) lifetimes[b].last = last_node;
    // The placement uses units of kAlignment bytes.
    nbytes[b] = size_of(buffer, values) * (chart.sizes_known ? 1 : ir::ArenaLayout::kAlignment);
  }
  ir::ArenaLayout layout;
  ir::place_in_arena(graph, lifetimes, shown, nbytes, &layout);
  if (layout.size == ir::ArenaLayout::kNone) return chart;  // does not fit into any memory
  const uint64_t unit = chart.sizes_known ? 1 : ir::ArenaLayout::kAlignment;
  chart.height = layout.size / unit;
  std::vector<int64_t> change(graph.nodes.size() + 1);
  for (uint32_t b = 0; b < graph.buffers.size(); ++b) {
    if (!shown[b]) continue;
    const ir::Lifetime& life = lifetimes[b];
    chart.bars.push_back({b, life.first, life.last, layout.offsets[b] / unit, nbytes[b] / unit});
    change[life.first] += static_cast<int64_t>(nbytes[b] / unit);
    change[life.last + 1] -= static_cast<int64_t>(nbytes[b] / unit);
    // A buffer may take over another one's memory in its first node. The other one then counts only up to the node
    // before.
    const uint32_t from = graph.buffers[b].may_reuse;
    if (from == ir::kNoBuffer || !shown[from] || layout.offsets[from] != layout.offsets[b]) continue;
    if (lifetimes[from].last != life.first) continue;
    change[life.first] -= static_cast<int64_t>(nbytes[from] / unit);
    change[life.first + 1] += static_cast<int64_t>(nbytes[from] / unit);
  }
  std::ranges::sort(chart.bars, {}, [](const MemoryBar& bar) { return std::pair(bar.first, bar.buffer); });
  int64_t live = 0;
  for (uint32_t n = 0; n < graph.nodes.size(); ++n) {
    live += change[n];
    chart.live[n] = static_cast<uint64_t>(std::max<int64_t>(live, 0));
    if (chart.live[n] > chart.live[chart.peak]) chart.peak = n;
  }
  return chart;
}

uint64_t bytes_of_node(const ir::Graph& graph, uint32_t node, const std::vector<int64_t>& values) {
  uint64_t bytes = 0;
  std::set<uint32_t> seen;
  ir::for_each_view(graph.nodes[node], [&](uint32_t view, bool) {
    if (seen.insert(view).second) bytes = std::min(kLargest, bytes + size_of(graph.views[view], values));
  });
  return bytes;
}

}  // namespace torch_remote::tools
