#include "codegen/lower/indices.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "codegen/loop/scalar_ops.h"
#include "codegen/lower/group_emitter.h"

namespace torch_remote::codegen {

using ir::DimMask;
using ir::DType;
using ir::IterationDomain;
using ir::KernelDims;
using ir::MergedDims;

namespace {

std::vector<V> checked_indices(NodeEmitter& node, std::span<const uint32_t> views,
                               const IterationDomain::Access& access, bool wraps) {
  std::vector<V> indices;
  indices.reserve(views.size());
  for (size_t i = 0; i < views.size(); ++i)
    indices.push_back(checked_index(node, views[i], access.indexed[i].size, wraps));
  return indices;
}

}  // namespace

V axis_index(NodeEmitter& node, uint32_t axis) {
  const KernelDims& dims = node.group.dims;
  uint32_t at = 0;
  for (const std::vector<MergedDims>* list : {&dims.row, &dims.columns}) {
    for (const MergedDims& dim : *list) {
      DimMask mask = 0;
      for (const uint32_t d : dim.dims) mask |= 1u << d;
      if (mask == node.member.axes[axis] && std::ranges::is_sorted(dim.dims) && dims.row_length == 0)
        return node.e.index(at);
      ++at;
    }
  }
  return kNone;
}

V linear_index(NodeEmitter& node) {
  Emitter& e = node.e;
  // The kernel's dims are in the order of memory, which must be the order of the axes.
  const KernelDims& dims = node.group.dims;
  if (!dims.outer.empty() || dims.row_length != 0 || node.member.space != node.group.domain.all()) return kNone;
  std::vector<uint32_t> in_memory, in_order;
  for (const std::vector<MergedDims>* list : {&dims.row, &dims.columns}) {
    for (const MergedDims& dim : *list) in_memory.insert(in_memory.end(), dim.dims.begin(), dim.dims.end());
  }
  for (const DimMask axis : node.member.axes) {
    for (uint32_t d = 0; d < node.group.domain.sizes().size(); ++d) {
      if ((axis >> d & 1) != 0) in_order.push_back(d);
    }
  }
  if (in_memory != in_order) return kNone;
  V number = kNone;
  uint32_t at = 0;
  for (const std::vector<MergedDims>* list : {&dims.row, &dims.columns}) {
    for (const MergedDims& dim : *list) {
      const V here = e.index(at++);
      number = number == kNone ? here : e.add(e.mul(number, e.scalar_int(dim.size)), here);
    }
  }
  return number == kNone ? e.constant(DType::kInt64, 0) : number;
}

V checked_index(NodeEmitter& node, uint32_t view, int64_t bound, bool wraps, std::optional<int64_t> ignored) {
  Emitter& e = node.e;
  const ir::View& from = node.graph.views[view];
  if (node.group.results.contains(from.buffer)) {
    node.group.launch.computes_indices = true;
  } else {
    IndexCheck check{from.buffer, from.dtype, node.group.values[from.offset], {}, {}, bound, wraps, ignored};
    for (const ir::Sym size : from.sizes) check.sizes.push_back(node.group.values[size]);
    for (const ir::Sym stride : from.strides) check.strides.push_back(node.group.values[stride]);
    node.group.launch.checks.push_back(std::move(check));
  }
  const V index = e.convert(node.element(view), DType::kInt64);
  if (!wraps) return index;
  const V below = e.op(ir::ScalarOp::kLt, index, e.constant(DType::kInt64, 0));
  return e.where(below, e.add(index, e.scalar_int(bound)), index);
}

V load_at_indices(NodeEmitter& node, std::string_view name, std::span<const uint32_t> indices, bool wraps) {
  const ir::Arg* given = node.args.find(name);
  for (const IterationDomain::Access& access : node.member.accesses) {
    if (given == nullptr || access.part.view != given->a || access.indexed.size() != indices.size()) continue;
    std::vector<V> places = checked_indices(node, indices, access, wraps);
    return node.e.load(node.group.operand(access, node.member.node), std::move(places));
  }
  return kNone;
}

V load_at_linear_index(NodeEmitter& node, std::string_view name, uint32_t number) {
  Emitter& e = node.e;
  const ir::Arg* given = node.args.find(name);
  for (IterationDomain::Access access : node.member.accesses) {
    if (given == nullptr || access.part.view != given->a || access.indexed.empty()) continue;
    int64_t count = 1;
    std::vector<IterationDomain::IndexedDim> dims;  // dims that cannot be merged with the next one
    for (const IterationDomain::IndexedDim& dim : access.indexed) {
      count *= dim.size;
      if (dim.size == 1) continue;
      if (!dims.empty() && dims.back().stride == dim.size * dim.stride) {
        dims.back() = {dims.back().size * dim.size, dim.stride};
      } else {
        dims.push_back(dim);
      }
    }
    if (dims.empty()) dims.push_back({1, 0});
    // If the number is out of bounds, so is an index: the first one gets the rest, which is not reduced by its size.
    std::vector<V> places(dims.size());
    V rest = checked_index(node, number, count, true);
    for (size_t d = dims.size(); d-- > 1;) {
      const V size = e.scalar_int(dims[d].size), quotient = e.div(rest, size);
      places[d] = e.sub(rest, e.mul(quotient, size));
      rest = quotient;
    }
    places[0] = rest;
    node.group.launch.splits_linear_indices |= dims.size() > 1;
    access.indexed = std::move(dims);
    return e.load(node.group.operand(access, node.member.node), std::move(places));
  }
  return kNone;
}

V check_index_in_axis(NodeEmitter& node, std::string_view name, V index, uint32_t axis) {
  const ir::Arg* given = node.args.find(name);
  for (IterationDomain::Access access : node.member.accesses) {
    if (given == nullptr || access.part.view != given->a) continue;
    std::ranges::fill(access.strides, 0);
    access.dims = 0;
    access.indexed = {{1, 0}};
    for (uint32_t d = 0; d < node.group.domain.sizes().size(); ++d) {
      if ((node.member.axes[axis] >> d & 1) != 0) access.indexed[0].size *= node.group.domain.sizes()[d];
    }
    return node.e.load(node.group.operand(access, node.member.node), {index});
  }
  return kNone;
}

void store_at_indices(NodeEmitter& node, std::span<const uint32_t> indices, V value, bool adds, bool wraps) {
  for (const IterationDomain::Access& access : node.member.accesses) {
    if (!access.part.in_order) continue;
    std::vector<V> places = checked_indices(node, indices, access, wraps);
    const DType type = loaded_type(node.graph.views[access.part.view].dtype);
    node.group.at_indices.push_back({std::move(places), node.e.convert(value, type), &access, node.member.node, adds});
  }
}

}  // namespace torch_remote::codegen
