#include "worker/targets/cpu/compiled/reuse.h"

#include <fstream>
#include <string>
#include <vector>

namespace torch_remote::worker::kernels {
namespace {

// Bytes of a view's distinct elements: a dim of stride 0 counts once.
uint64_t bytes_of(const ir::Graph& graph, uint32_t index, std::span<const int64_t> values) {
  const ir::View& view = graph.views[index];
  if (view.dynamic) return 0;
  auto bytes = static_cast<uint64_t>(ir::item_size(view.dtype));
  for (size_t d = 0; d < view.sizes.size(); ++d) {
    if (values[view.strides[d]] != 0) bytes *= static_cast<uint64_t>(values[view.sizes[d]]);
  }
  return bytes;
}

}  // namespace

uint64_t bytes_until_read(const ir::Graph& graph, const ir::Group& group, std::span<const int64_t> values,
                          uint64_t most) {
  enum class Seen : uint8_t { kNot, kCounted, kStored };
  std::vector<Seen> seen(graph.buffers.size(), Seen::kNot);
  uint64_t bytes = 0;
  for (uint32_t n = group.first; n < graph.nodes.size() && bytes <= most; ++n) {
    bool reads = false;
    ir::for_each_access(graph.nodes[n], [&](uint32_t view, ir::Access access) {
      const uint32_t b = graph.views[view].buffer;
      if (graph.buffers[b].group_local) return;
      const bool looks = access == ir::Access::kReads || access == ir::Access::kUpdates;
      reads |= n > group.last && seen[b] == Seen::kStored && looks;
      if (seen[b] == Seen::kNot) {
        bytes += bytes_of(graph, view, values);
        seen[b] = Seen::kCounted;
      }
      if (n <= group.last && access != ir::Access::kReads) seen[b] = Seen::kStored;
    });
    if (reads) break;
  }
  return bytes;
}

uint64_t last_cache_bytes() {
  // sysconf is not used: on AMD processors it adds up the last-level caches of all cores.
  for (const char* index : {"index3", "index2"}) {
    std::ifstream file("/sys/devices/system/cpu/cpu0/cache/" + std::string(index) + "/size");
    uint64_t size = 0;
    char unit = 0;
    if (file >> size >> unit) return unit == 'K' ? size << 10 : unit == 'M' ? size << 20 : size;
  }
  return 0;
}

}  // namespace torch_remote::worker::kernels
