#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "codegen/lower/launch.h"
#include "ir/graph.h"
#include "ir/status.h"

// Group of a graph -> kernels, and what they are called with. No LLVM here.
namespace torch_remote::codegen {

// One run's kernels, one after the other. kUnsupported: no kernel does the group in a run with these sizes and strides;
// its nodes can be done one by one. `values` are those of the graph's symbols.
// `in_order`: each kernel begins when the one before it has ended, so tensors of one node's list may share memory.
Status lower_group(const ir::Graph& graph, const ir::Group& group, std::span<const int64_t> values,
                   std::vector<Launch>* launches, bool in_order = false);

// Whether what the launch stores to buffer `made` may overwrite buffer `source`, which it only loads: each element of
// that where it is loaded for the last time, of as many bytes. They are the graph's.
bool may_share(const Launch& launch, uint32_t made, uint32_t source);

}  // namespace torch_remote::codegen
