#include <algorithm>
#include <bit>
#include <optional>
#include <utility>

#include "codegen/loop/scalar_ops.h"
#include "codegen/lower/emitter.h"
#include "codegen/lower/group_emitter.h"
#include "ir/analysis.h"

// The operands, results and indices of one member, as values of the kernel.
namespace torch_remote::codegen {

using ir::DimMask;
using ir::DType;
using ir::IterationDomain;
using ir::KernelDims;
using ir::MergedDims;

NodeEmitter::NodeEmitter(Group& group, const IterationDomain::Member& member, const ir::Node& node, uint32_t item)
    : e(group.emitter),
      graph(group.graph),
      member(member),
      node(node),
      desc(ir::op_desc(node.opcode)),
      group_(group),
      item_(item) {}

bool NodeEmitter::checks_divisors() const { return group_.domain.checks_divisors(); }

const ir::Arg* NodeEmitter::argument(std::string_view name) const {
  const std::optional<size_t> found = ir::find_argument(desc, name);
  return found ? &arg(*found) : nullptr;
}

// The caller bases the kernel on this value, so another value of the symbol requires another kernel.
int64_t NodeEmitter::symbol(ir::Sym symbol) const {
  group_.launch.depends.push_back(symbol);
  return group_.values[symbol];
}

V NodeEmitter::scalar_of(DType type, ir::Sym symbol) { return e.scalar_of(type, symbol, group_.values[symbol]); }

V NodeEmitter::read(const IterationDomain::Access& access, std::vector<V> indices) {
  const auto made = group_.results.find(graph.views[access.part.view].buffer);
  if (made != group_.results.end()) {
    const Group::EmittedResult& known = made->second;
    return known.rounds ? e.rounded(known.value, graph.views[access.part.view].dtype) : known.value;
  }
  return e.load(group_.operand(access, member.node), std::move(indices));
}

V NodeEmitter::element(uint32_t view) {
  for (const IterationDomain::Access& access : member.accesses) {
    if (access.part.view == view && access.part.reads && access.indexed.empty()) return read(access);
  }
  return kNone;
}

V NodeEmitter::operand(size_t index) {
  const ir::Arg& given = arg(index);
  switch (given.tag) {
    case ir::ArgTag::kView:
      return element(given.a);
    case ir::ArgTag::kScalarTensor: {
      const auto dtype = static_cast<DType>(given.b & 0xFF);
      if (dtype == DType::kBool) return scalar_of(DType::kBool, given.a);
      const DType wide = ir::is_float(dtype) ? DType::kFloat64 : DType::kInt64;
      return e.convert(scalar_of(wide, given.a), loaded_type(dtype));
    }
    case ir::ArgTag::kInt:
      return scalar_of(DType::kInt64, given.a);
    case ir::ArgTag::kFloat:
      return scalar_of(DType::kFloat64, given.a);
    case ir::ArgTag::kBool:
      return scalar_of(DType::kBool, given.a);
    default:
      return kNone;
  }
}

V NodeEmitter::operand(std::string_view name) {
  const std::optional<size_t> found = ir::find_argument(desc, name);
  return found ? operand(*found) : kNone;
}

V NodeEmitter::operand(std::string_view name, DType type) { return e.convert(operand(name), type); }

int64_t NodeEmitter::int_argument(std::string_view name) const {
  const ir::Arg* given = argument(name);
  return given != nullptr && given->tag == ir::ArgTag::kInt ? symbol(given->a) : 0;
}

double NodeEmitter::float_argument(std::string_view name) const {
  const ir::Arg* given = argument(name);
  if (given == nullptr) return 0;
  if (given->tag == ir::ArgTag::kInt) return static_cast<double>(symbol(given->a));
  return given->tag == ir::ArgTag::kFloat ? std::bit_cast<double>(symbol(given->a)) : 0;
}

bool NodeEmitter::bool_argument(std::string_view name) const {
  const ir::Arg* given = argument(name);
  return given != nullptr && given->tag == ir::ArgTag::kBool && symbol(given->a) != 0;
}

std::optional<double> NodeEmitter::number(size_t index) const {
  const ir::Arg& given = arg(index);
  const bool floats = given.tag == ir::ArgTag::kFloat ||
                      (given.tag == ir::ArgTag::kScalarTensor && ir::is_float(static_cast<DType>(given.b & 0xFF)));
  if (floats) return std::bit_cast<double>(symbol(given.a));
  if (given.tag != ir::ArgTag::kInt && given.tag != ir::ArgTag::kScalarTensor) return std::nullopt;
  return static_cast<double>(symbol(given.a));
}

bool NodeEmitter::has(std::string_view name) const {
  const ir::Arg* given = argument(name);
  return given != nullptr && given->tag != ir::ArgTag::kNone;
}

bool NodeEmitter::has_part(std::string_view name) const {
  const ir::Arg* given = argument(name);
  return given != nullptr && given->tag == ir::ArgTag::kView &&
         std::ranges::any_of(member.accesses,
                             [&](const IterationDomain::Access& access) { return access.part.view == given->a; });
}

const ir::View* NodeEmitter::view(std::string_view name) const {
  const ir::Arg* given = argument(name);
  return given != nullptr && given->tag == ir::ArgTag::kView ? &graph.views[given->a] : nullptr;
}

bool NodeEmitter::is_result_used(size_t result) const {
  return ir::item_of(node.results[result], item_).tag == ir::ArgTag::kView;
}

DType NodeEmitter::result_dtype(size_t result) const {
  if (!node.results.empty() && is_result_used(result))
    return graph.views[ir::item_of(node.results[result], item_).a].dtype;
  for (const IterationDomain::Access& access : member.accesses) {
    if (access.part.writes) return graph.views[access.part.view].dtype;
  }
  return DType::kFloat32;
}

void NodeEmitter::write(uint32_t view, V value) {
  const ir::View& to = graph.views[view];
  // A chain of ops on half types is rounded only at its end, but a conversion to a half type must round.
  bool rounds = false;
  if (member.form.expansion == ir::Expansion::kCopy && is_half(to.dtype)) {
    rounds = std::ranges::any_of(member.accesses, [&](const IterationDomain::Access& access) {
      return access.part.reads && graph.views[access.part.view].dtype != to.dtype;
    });
  }
  for (const IterationDomain::Access& access : member.accesses) {
    if (access.part.view != view || !access.part.writes) continue;
    group_.results[to.buffer] = {e.convert(value, loaded_type(to.dtype)), &access, member.node, rounds};
  }
}

void NodeEmitter::result(size_t index, V value) {
  if (is_result_used(index)) write(ir::item_of(node.results[index], item_).a, value);
}

void NodeEmitter::fill(V value) {
  for (const IterationDomain::Access& access : member.accesses) {
    if (access.part.writes) write(access.part.view, value);
  }
}

void NodeEmitter::update(std::string_view name, V value) {
  const ir::Arg* given = argument(name);
  if (given != nullptr && given->tag == ir::ArgTag::kView) write(given->a, value);
}

int64_t NodeEmitter::size(const ir::View& view, size_t dim) const { return group_.values[view.sizes[dim]]; }

int64_t NodeEmitter::space_points() const {
  int64_t points = 1;
  for (const ir::Sym size : graph.views[member.form.space].sizes) points *= group_.values[size];
  return points;
}

V NodeEmitter::reduced_points(DType type) {
  return e.convert(e.scalar_float(static_cast<double>(count_reduced())), type);
}

int64_t NodeEmitter::count_reduced() const {
  std::vector<int64_t> sizes;
  int64_t points = 1;
  if (!ir::find_sizes(graph, member.form, group_.values, &sizes)) return points;
  for (size_t a = 0; a < sizes.size(); ++a) {
    if ((member.form.reduced >> a & 1) != 0) points *= sizes[a];
  }
  return points;
}

V NodeEmitter::sum_for(size_t result, V value) {
  const uint32_t view = ir::item_of(node.results[result], item_).a;
  const auto found = std::ranges::find_if(member.accesses, [&](const IterationDomain::Access& access) {
    return access.part.view == view && access.part.writes;
  });
  if (found == member.accesses.end()) return kNone;
  const std::vector<MergedDims>& columns = group_.dims.columns;
  const auto varies = [&](size_t column) { return columns[column].stride(*found) != 0; };
  const bool rows = group_.launch.kernel.rows != 0;
  if (columns.size() == 2 && varies(0) != varies(1)) return varies(0) ? e.wide_sum(value, Over::kLines) : kNone;
  value = e.convert(value, sum_type(e.type(value)));
  if (!columns.empty() && !varies(0)) value = e.columns(Reduction::kSum, value);
  return rows ? e.rows(Reduction::kSum, value) : value;
}

V NodeEmitter::reduce(Reduction reduction, V value) {
  if (member.reduces == ir::ReductionKind::kColumns || member.reduces == ir::ReductionKind::kAll) {
    value = e.columns(reduction, value);
  }
  if (member.reduces == ir::ReductionKind::kRows || member.reduces == ir::ReductionKind::kAll)
    value = e.rows(reduction, value);
  return value;
}

V NodeEmitter::accumulate(Reduction reduction, V value) {
  const bool is_over_columns =
      member.reduces == ir::ReductionKind::kColumns || member.reduces == ir::ReductionKind::kAll;
  if (is_over_columns && reduction == Reduction::kSum && e.is_nonnegative(value)) {
    const V sum = e.wide_sum(value);
    return member.reduces == ir::ReductionKind::kAll ? e.rows(Reduction::kSum, sum) : sum;
  }
  return reduce(reduction, e.convert(value, sum_type(e.type(value))));
}

bool NodeEmitter::has_one_column() const {
  return group_.dims.columns.size() == 1 && member.reduces == ir::ReductionKind::kColumns;
}

V NodeEmitter::axis_index(uint32_t axis) {
  uint32_t at = 0;
  for (const std::vector<MergedDims>* list : {&group_.dims.row, &group_.dims.columns}) {
    for (const MergedDims& dim : *list) {
      DimMask mask = 0;
      for (const uint32_t d : dim.dims) mask |= 1u << d;
      if (mask == member.axes[axis] && std::ranges::is_sorted(dim.dims) && group_.dims.row_length == 0)
        return e.index(at);
      ++at;
    }
  }
  return kNone;
}

V NodeEmitter::linear_index() {
  // The kernel's dims are in the order of memory, which must be the order of the axes.
  const KernelDims& dims = group_.dims;
  if (!dims.outer.empty() || dims.row_length != 0 || member.space != group_.domain.all()) return kNone;
  std::vector<uint32_t> in_memory, in_order;
  for (const std::vector<MergedDims>* list : {&dims.row, &dims.columns}) {
    for (const MergedDims& dim : *list) in_memory.insert(in_memory.end(), dim.dims.begin(), dim.dims.end());
  }
  for (const DimMask axis : member.axes) {
    for (uint32_t d = 0; d < group_.domain.sizes().size(); ++d) {
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
  return number == kNone ? e.constant_int(DType::kInt64, 0) : number;
}

V NodeEmitter::checked_index(uint32_t view, int64_t bound, bool wraps, std::optional<int64_t> ignored) {
  const ir::View& from = graph.views[view];
  if (group_.results.contains(from.buffer)) {
    group_.launch.computes_indices = true;
  } else {
    IndexCheck check{from.buffer, from.dtype, group_.values[from.offset], {}, {}, bound, wraps, ignored};
    for (const ir::Sym size : from.sizes) check.sizes.push_back(group_.values[size]);
    for (const ir::Sym stride : from.strides) check.strides.push_back(group_.values[stride]);
    group_.launch.checks.push_back(std::move(check));
  }
  const V index = e.convert(element(view), DType::kInt64);
  if (!wraps) return index;
  const V below = e.op(ir::ScalarOp::kLt, index, e.constant_int(DType::kInt64, 0));
  return e.where(below, e.add(index, e.scalar_int(bound)), index);
}

V NodeEmitter::load_at_indices(std::string_view name, std::span<const uint32_t> indices, bool wraps) {
  const ir::Arg* given = argument(name);
  for (const IterationDomain::Access& access : member.accesses) {
    if (given == nullptr || access.part.view != given->a || access.indexed.size() != indices.size()) continue;
    std::vector<V> places;
    places.reserve(indices.size());
    for (size_t i = 0; i < indices.size(); ++i)
      places.push_back(checked_index(indices[i], access.indexed[i].size, wraps));
    return e.load(group_.operand(access, member.node), std::move(places));
  }
  return kNone;
}

V NodeEmitter::load_at_linear_index(std::string_view name, uint32_t number) {
  const ir::Arg* given = argument(name);
  for (IterationDomain::Access access : member.accesses) {
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
    V rest = checked_index(number, count, true);
    for (size_t d = dims.size(); d-- > 1;) {
      const V size = e.scalar_int(dims[d].size), quotient = e.div(rest, size);
      places[d] = e.sub(rest, e.mul(quotient, size));
      rest = quotient;
    }
    places[0] = rest;
    group_.launch.splits_linear_indices |= dims.size() > 1;
    access.indexed = std::move(dims);
    return e.load(group_.operand(access, member.node), std::move(places));
  }
  return kNone;
}

V NodeEmitter::check_index_in_axis(std::string_view name, V index, uint32_t axis) {
  const ir::Arg* given = argument(name);
  for (IterationDomain::Access access : member.accesses) {
    if (given == nullptr || access.part.view != given->a) continue;
    std::ranges::fill(access.strides, 0);
    access.dims = 0;
    access.indexed = {{1, 0}};
    for (uint32_t d = 0; d < group_.domain.sizes().size(); ++d) {
      if ((member.axes[axis] >> d & 1) != 0) access.indexed[0].size *= group_.domain.sizes()[d];
    }
    return e.load(group_.operand(access, member.node), {index});
  }
  return kNone;
}

void NodeEmitter::write_at(std::span<const uint32_t> indices, V value, bool adds, bool wraps) {
  for (const IterationDomain::Access& access : member.accesses) {
    if (!access.part.in_order) continue;
    std::vector<V> places;
    places.reserve(indices.size());
    for (size_t i = 0; i < indices.size(); ++i)
      places.push_back(checked_index(indices[i], access.indexed[i].size, wraps));
    const DType type = loaded_type(graph.views[access.part.view].dtype);
    group_.at_indices.push_back({std::move(places), e.convert(value, type), &access, member.node, adds});
  }
}

}  // namespace torch_remote::codegen
