#include "codegen/lower/node_emitter.h"

#include <algorithm>
#include <vector>

#include "codegen/loop/scalar_ops.h"
#include "codegen/lower/group_emitter.h"
#include "ir/fusion/fusion.h"

namespace torch_remote::codegen {

using ir::DType;
using ir::IterationDomain;
using ir::MergedDims;

namespace {

// Whether the value is an absolute value or a square.
bool is_nonnegative(const Value& value) {
  if (value.kind != Kind::kScalarOp) return false;
  return value.op == ir::ScalarOp::kAbs || (value.op == ir::ScalarOp::kMul && value.a == value.b);
}

}  // namespace

NodeEmitter::NodeEmitter(GroupEmitter& group, const IterationDomain::Member& member, uint32_t item)
    : group(group),
      e(group.emitter),
      graph(group.graph),
      member(member),
      node(group.graph.nodes[member.node]),
      item(item),
      args(group, node, item) {}

bool NodeEmitter::checks_divisors() const { return group.domain.checks_divisors(); }

V NodeEmitter::scalar_of(DType type, ir::Sym symbol) { return e.scalar_of(type, symbol, group.values[symbol]); }

V NodeEmitter::element(uint32_t view) {
  for (const IterationDomain::Access& access : member.accesses) {
    if (access.part.view != view || !access.part.reads || !access.indexed.empty()) continue;
    const ir::View& from = graph.views[view];
    const auto made = group.results.find(from.buffer);
    if (made == group.results.end()) return e.load(group.operand(access, member.node));
    return made->second.rounds ? e.rounded(made->second.value, from.dtype) : made->second.value;
  }
  return kNone;
}

V NodeEmitter::operand(const ir::Arg& given) {
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
  const ir::Arg* given = args.find(name);
  return given != nullptr ? operand(*given) : kNone;
}

V NodeEmitter::operand(std::string_view name, DType type) { return e.convert(operand(name), type); }

V NodeEmitter::stored_operand(const ir::Arg& given) {
  const V value = operand(given);
  if (value == kNone || given.tag != ir::ArgTag::kView) return value;
  const ir::View& from = graph.views[given.a];
  const auto made = group.results.find(from.buffer);
  if (!is_half(from.dtype) || made == group.results.end() || made->second.rounds) return value;
  const Value& known = e.value_at(value);
  const bool is_loaded = known.kind == Kind::kLoad && group.launch.kernel.operands[known.operand].dtype == from.dtype;
  return is_loaded ? value : e.rounded(value, from.dtype);
}

bool NodeEmitter::has_part(std::string_view name) const {
  const ir::Arg* given = args.find(name);
  return given != nullptr && given->tag == ir::ArgTag::kView &&
         std::ranges::any_of(member.accesses,
                             [&](const IterationDomain::Access& access) { return access.part.view == given->a; });
}

bool NodeEmitter::is_result_used(size_t result) const {
  return ir::item_of(node.results[result], item).tag == ir::ArgTag::kView;
}

DType NodeEmitter::result_dtype(size_t result) const {
  if (!node.results.empty() && is_result_used(result))
    return graph.views[ir::item_of(node.results[result], item).a].dtype;
  for (const IterationDomain::Access& access : member.accesses) {
    if (access.part.writes) return graph.views[access.part.view].dtype;
  }
  return DType::kFloat32;
}

void NodeEmitter::write(uint32_t view, V value) {
  const ir::View& to = graph.views[view];
  // A chain of ops on half types is rounded only at its end, but a conversion to a half type must round. See also
  // stored_operand().
  bool rounds = false;
  if (member.form.expansion == ir::Expansion::kCopy && is_half(to.dtype)) {
    rounds = std::ranges::any_of(member.accesses, [&](const IterationDomain::Access& access) {
      return access.part.reads && graph.views[access.part.view].dtype != to.dtype;
    });
  }
  for (const IterationDomain::Access& access : member.accesses) {
    if (access.part.view != view || !access.part.writes) continue;
    group.results[to.buffer] = {e.convert(value, loaded_type(to.dtype)), &access, member.node, rounds};
  }
}

void NodeEmitter::result(size_t index, V value) {
  if (is_result_used(index)) write(ir::item_of(node.results[index], item).a, value);
}

void NodeEmitter::fill(V value) {
  for (const IterationDomain::Access& access : member.accesses) {
    if (access.part.writes) write(access.part.view, value);
  }
}

void NodeEmitter::update(std::string_view name, V value) {
  const ir::Arg* given = args.find(name);
  if (given != nullptr && given->tag == ir::ArgTag::kView) write(given->a, value);
}

int64_t NodeEmitter::space_points() const {
  int64_t points = 1;
  for (const ir::Sym size : graph.views[member.form.space].sizes) points *= group.values[size];
  return points;
}

V NodeEmitter::reduced_points(DType type) {
  return e.convert(e.scalar_float(static_cast<double>(count_reduced())), type);
}

int64_t NodeEmitter::count_reduced() const {
  std::vector<int64_t> sizes;
  int64_t points = 1;
  if (!ir::find_sizes(graph, member.form, group.values, &sizes)) return points;
  for (size_t a = 0; a < sizes.size(); ++a) {
    if ((member.form.reduced >> a & 1) != 0) points *= sizes[a];
  }
  return points;
}

V NodeEmitter::sum_for(size_t result, V value) {
  const uint32_t view = ir::item_of(node.results[result], item).a;
  const auto found = std::ranges::find_if(member.accesses, [&](const IterationDomain::Access& access) {
    return access.part.view == view && access.part.writes;
  });
  if (found == member.accesses.end()) return kNone;
  const std::vector<MergedDims>& columns = group.dims.columns;
  const auto varies = [&](size_t column) { return columns[column].stride(*found) != 0; };
  const bool rows = group.launch.kernel.rows != 0;
  if (columns.size() == 2 && varies(0) != varies(1)) return varies(0) ? e.wide_sum(value, Over::kLines) : kNone;
  value = e.convert(value, sum_type(e.type(value)));
  if (!columns.empty() && !varies(0)) value = e.reduce(Reduction::kSum, value);
  return rows ? e.reduce(Reduction::kSum, value, Over::kRows) : value;
}

V NodeEmitter::reduce(Reduction reduction, V value) {
  if (member.reduces == ir::ReductionKind::kColumns || member.reduces == ir::ReductionKind::kAll) {
    value = e.reduce(reduction, value);
  }
  if (member.reduces == ir::ReductionKind::kRows || member.reduces == ir::ReductionKind::kAll)
    value = e.reduce(reduction, value, Over::kRows);
  return value;
}

V NodeEmitter::accumulate(Reduction reduction, V value) {
  const bool is_over_columns =
      member.reduces == ir::ReductionKind::kColumns || member.reduces == ir::ReductionKind::kAll;
  if (is_over_columns && reduction == Reduction::kSum && is_nonnegative(e.value_at(value))) {
    const V sum = e.wide_sum(value);
    return member.reduces == ir::ReductionKind::kAll ? e.reduce(Reduction::kSum, sum, Over::kRows) : sum;
  }
  return reduce(reduction, e.convert(value, sum_type(e.type(value))));
}

bool NodeEmitter::has_one_column() const {
  return group.dims.columns.size() == 1 && member.reduces == ir::ReductionKind::kColumns;
}

}  // namespace torch_remote::codegen
