#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "ir/analysis.h"
#include "ir/graph.h"

// The layout of a program's temporaries in its arena, for one set of sizes.
namespace torch_remote::ir {

struct ArenaLayout {
  static constexpr uint64_t kNone = std::numeric_limits<uint64_t>::max();
  static constexpr uint64_t kAlignment = 64;
  uint64_t size = 0;              // Bytes; kNone: larger than an arena can be.
  std::vector<uint64_t> offsets;  // One per buffer; kNone: the buffer is not in the arena.
};

// Places the buffers that `in_arena` marks, in the order of their first nodes. Each gets the best fit of the memory
// that is free at its first node. If its Buffer::may_reuse names another buffer, it takes over the memory of that
// buffer instead. Two conditions must hold: the memory is large enough, and the other buffer's last node is this
// buffer's first one. A lifetime in `lifetimes` may be longer than the one that find_lifetimes() returns.
void place_in_arena(const Graph& graph, const std::vector<Lifetime>& lifetimes, const std::vector<bool>& in_arena,
                    const std::vector<uint64_t>& nbytes, ArenaLayout* layout);

}  // namespace torch_remote::ir
