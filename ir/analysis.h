#pragma once

#include <cstdint>
#include <vector>

#include "ir/graph.h"

// What follows from a graph's nodes: computed here, used by passes, the verifier, the worker and the tools.
namespace torch_remote::ir {

struct Lifetime {
  uint32_t first = kNoNode;  // the node that touches it first; kNoNode: none does
  uint32_t last = kNoNode;
};

// Of each buffer.
std::vector<Lifetime> find_lifetimes(const Graph& graph);

// Which buffers some node writes or makes.
std::vector<bool> written_buffers(const Graph& graph);

// Same dtype, sizes, strides and offset: two such views of one buffer are the same elements.
bool same_geometry(const View& a, const View& b);

// The op fills its first argument, a tensor, and does not read it (copy_, fill_, zero_).
bool fills_first_argument(const OpDesc& desc);

// Whether the node may make buffer `to` in the memory of buffer `from`: it computes each element from the elements at
// the same place (a pointwise op, or a copy), writes all of `to` that it sees without reading it, only reads `from`,
// and sees both as the same elements. That `from` is needed by nobody afterwards is not looked at.
bool may_work_in_place(const Graph& graph, const Node& node, uint32_t from, uint32_t to);

}  // namespace torch_remote::ir
