#include "tools/viz/dependencies.h"

#include <algorithm>

namespace torch_remote::tools {

std::vector<std::pair<uint32_t, uint32_t>> dependencies(const ir::Graph& graph) {
  std::vector<std::pair<uint32_t, uint32_t>> out;
  std::vector<uint32_t> writer(graph.buffers.size(), ir::kNoNode);
  for (uint32_t n = 0; n < graph.nodes.size(); ++n) {
    ir::for_each_view(graph.nodes[n], [&](uint32_t view, bool) {
      const uint32_t last = writer[graph.views[view].buffer];
      if (last != ir::kNoNode) out.emplace_back(last, n);
    });
    ir::for_each_view(graph.nodes[n], [&](uint32_t view, bool writes) {
      if (writes) writer[graph.views[view].buffer] = n;
    });
  }
  std::ranges::sort(out);
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

}  // namespace torch_remote::tools
