#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "codegen/lower/launch.h"
#include "ir/fusion/domain.h"
#include "ir/graph.h"
#include "ir/status.h"

// Lowers a group of a graph to kernels and the arguments that they are called with. Does not use LLVM.
namespace torch_remote::codegen {

// Sets `launches` to the kernels of one run, in order of execution. `values` are the values of the graph's symbols in
// this run. Returns kUnsupported if no kernel can compute the group with these sizes and strides; its nodes can then be
// executed one by one.
// `in_order`: each kernel begins after the previous one has ended, so tensors of one node's list may share memory.
// `kind`: with other kinds than kGroup, sizes may be 0. Do not run compiled code for such sizes: it needs elements.
Status lower_group(const ir::Graph& graph, const ir::Group& group, std::span<const int64_t> values,
                   std::vector<Launch>* launches, bool in_order = false, ir::DomainKind kind = ir::DomainKind::kGroup);

// Whether the launches may store buffer `made` in the memory of buffer `source` (both are buffers of the graph). One
// launch only may have the two buffers. It must only load `source`, and overwrite each element after its last load with
// an element of the same size.
bool may_share(std::span<const Launch> launches, uint32_t made, uint32_t source);

}  // namespace torch_remote::codegen
