#include "ir/arena.h"

#include <algorithm>
#include <map>

namespace torch_remote::ir {
namespace {

constexpr uint64_t kLargestArena = uint64_t{1} << 50;

// Free memory of the arena, by offset; adjacent ranges are joined.
class FreeList {
 public:
  // Takes the best fit; grows the arena if no free range is large enough.
  uint64_t take(uint64_t size) {
    auto best = free_.end();
    for (auto it = free_.begin(); it != free_.end(); ++it) {
      if (it->second >= size && (best == free_.end() || it->second < best->second)) best = it;
    }
    if (best == free_.end()) {
      // A free range at the end of the arena becomes the beginning of the new one.
      uint64_t offset = end_;
      if (!free_.empty() && free_.rbegin()->first + free_.rbegin()->second == end_) {
        offset = free_.rbegin()->first;
        free_.erase(offset);
      }
      end_ = offset + size;
      return offset;
    }
    const auto [offset, length] = *best;
    free_.erase(best);
    if (length > size) free_[offset + size] = length - size;
    return offset;
  }

  void give(uint64_t offset, uint64_t size) {
    if (size == 0) return;
    auto next = free_.lower_bound(offset);
    if (next != free_.end() && offset + size == next->first) {
      size += next->second;
      next = free_.erase(next);
    }
    if (next != free_.begin()) {
      auto previous = std::prev(next);
      if (previous->first + previous->second == offset) {
        previous->second += size;
        return;
      }
    }
    free_[offset] = size;
  }

  uint64_t end() const { return end_; }

 private:
  std::map<uint64_t, uint64_t> free_;
  uint64_t end_ = 0;
};

}  // namespace

void place_in_arena(const Graph& graph, const std::vector<Lifetime>& lifetimes, const std::vector<bool>& in_arena,
                    const std::vector<uint64_t>& nbytes, ArenaLayout* layout) {
  const size_t count = graph.buffers.size();
  layout->offsets.assign(count, ArenaLayout::kNone);
  layout->size = 0;
  std::vector<uint32_t> by_first, by_last;
  std::vector<uint64_t> sizes(count, 0);
  std::vector<bool> owns(count, false);  // Its memory is freed when it dies.
  uint64_t total = 0;
  for (uint32_t b = 0; b < count; ++b) {
    if (!in_arena[b] || lifetimes[b].first == kNoNode) continue;
    if (nbytes[b] > kLargestArena || total > kLargestArena) {
      layout->size = ArenaLayout::kNone;
      return;
    }
    sizes[b] = (nbytes[b] + ArenaLayout::kAlignment - 1) / ArenaLayout::kAlignment * ArenaLayout::kAlignment;
    total += sizes[b];
    by_first.push_back(b);
  }
  by_last = by_first;
  std::stable_sort(by_first.begin(), by_first.end(),
                   [&](uint32_t a, uint32_t b) { return lifetimes[a].first < lifetimes[b].first; });
  std::stable_sort(by_last.begin(), by_last.end(),
                   [&](uint32_t a, uint32_t b) { return lifetimes[a].last < lifetimes[b].last; });
  FreeList free;
  auto dying = by_last.begin();
  for (const uint32_t b : by_first) {
    const uint32_t now = lifetimes[b].first;
    for (; dying != by_last.end() && lifetimes[*dying].last < now; ++dying) {
      if (owns[*dying]) free.give(layout->offsets[*dying], sizes[*dying]);
    }
    const uint32_t from = graph.buffers[b].may_reuse;
    if (from != kNoBuffer && in_arena[from] && owns[from] && sizes[b] <= sizes[from] && lifetimes[from].last == now) {
      layout->offsets[b] = layout->offsets[from];
      sizes[b] = sizes[from];
      owns[from] = false;
      owns[b] = true;
      continue;
    }
    layout->offsets[b] = free.take(sizes[b]);
    owns[b] = true;
  }
  layout->size = free.end();
}

}  // namespace torch_remote::ir
