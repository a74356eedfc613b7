#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "ir/graph.h"

// Facts computed from a graph's nodes; used by passes, the verifier, the worker and the tools.
namespace torch_remote::ir {

// The position of the op's argument with this name. Empty: it has none.
std::optional<size_t> find_argument(const OpDesc& desc, std::string_view name);

// The node's argument with this name. Null: its op has none.
const Arg* find_argument(const Node& node, std::string_view name);

// The view of the node's i-th result, or of the argument that the result aliases. Null: there is no such result, it is
// not one tensor, or its sizes are known only when the node runs.
const Arg* find_result(const Graph& graph, const Node& node, size_t i);

// The number of consecutive symbols that an argument names, beginning with Arg::a: 0, 1 or 2.
uint32_t count_symbols(const Arg& arg);

// Calls f(Sym&, uint32_t count) for every symbol that an argument or an item of it names; `count` is count_symbols().
template <typename F>
void for_each_symbol(Arg& arg, F&& f) {
  if (const uint32_t count = count_symbols(arg); count != 0) f(arg.a, count);
  for (Arg& item : arg.items) for_each_symbol(item, f);
}

struct Lifetime {
  uint32_t first = kNoNode;  // the first node that touches the buffer; kNoNode if none does
  uint32_t last = kNoNode;
};

// Returns one lifetime for each buffer.
std::vector<Lifetime> find_lifetimes(const Graph& graph);

// Returns, for each buffer, whether a node writes or creates it.
std::vector<bool> written_buffers(const Graph& graph);

// Whether dtype, sizes, strides and offset are equal: two such views of one buffer are the same elements.
bool same_geometry(const View& a, const View& b);

// Whether the op writes all of its first argument, a tensor, without reading it (copy_, fill_, zero_). False for ops
// that draw random numbers (normal_).
bool fills_first_argument(const OpDesc& desc);

// Whether the node may create buffer `to` in the memory of buffer `from`. The op must be pointwise with an expression
// or a shape rule, or pass fills_first_argument(), or it has kOpMayReuseFirst and its first operand is a view of
// `from`. All the node's views of the two buffers must have the same geometry. The node must write each element of its
// views of `to` without reading one, and must only read `from`. The caller checks that nothing needs `from` afterwards,
// and that the buffers' sizes fit.
bool may_work_in_place(const Graph& graph, const Node& node, uint32_t from, uint32_t to);

}  // namespace torch_remote::ir
