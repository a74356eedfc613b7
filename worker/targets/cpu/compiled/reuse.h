#pragma once

#include <cstdint>
#include <span>

#include "ir/graph.h"

// Whether what a group stores is still in the caches when it is read. Where it is not, kernels store it past them
// (codegen::cpu::Variant::streams): nothing is fetched before it is overwritten, which is a third of the traffic of a
// kernel with one operand and one result.
namespace torch_remote::worker::kernels {

// Bytes that a run goes through, from the group's first node on, until a node after the group reads what it has stored,
// or to the program's end: each buffer counts once. Stops counting beyond `most`. `values`: of all symbols.
uint64_t bytes_until_read(const ir::Graph& graph, const ir::Group& group, std::span<const int64_t> values,
                          uint64_t most);

// Bytes of the last cache of this machine's first core, as the kernel tells; 0: it does not.
uint64_t last_cache_bytes();

}  // namespace torch_remote::worker::kernels
