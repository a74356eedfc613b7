#pragma once

#include <cstdint>
#include <span>

#include "ir/graph.h"

// Decides whether a group's results are still in the caches when they are read. If not, kernels use streaming stores
// (codegen::cpu::Variant::streams). These do not fetch memory before they overwrite it, which saves a third of the
// traffic of a kernel with one operand and one result.
namespace torch_remote::worker::kernels {

// Bytes that a run accesses from the group's first node until a later node reads one of the group's results, or until
// the program's end. Each buffer counts once. Stops counting above `most`. `values`: the values of all symbols.
uint64_t bytes_until_read(const ir::Graph& graph, const ir::Group& group, std::span<const int64_t> values,
                          uint64_t most);

// Size in bytes of the last-level cache of this machine's first core, from Linux; 0 if it is not available.
uint64_t last_cache_bytes();

}  // namespace torch_remote::worker::kernels
