#include "worker/targets/cuda/ops/op_plan.h"

#include <algorithm>
#include <bit>
#include <string>
#include <utility>

#include "ir/analysis.h"
#include "worker/targets/cuda/kernels/arguments.h"
#include "worker/targets/cuda/kernels/complex_arguments.h"
#include "worker/targets/cuda/ops/op_plans_generated.h"

namespace torch_remote::worker::cuda {

using ir::ArgTag;
using ir::DType;

int64_t OpTensor::count() const {
  int64_t points = 1;
  for (const int64_t size : sizes) points *= size;
  return points;
}

bool OpTensor::is_packed() const {
  int64_t step = 1;
  for (size_t d = sizes.size(); d-- > 0;) {
    if (sizes[d] != 1 && strides[d] != step) return count() == 0;
    step *= sizes[d];
  }
  return true;
}

OuterLengthInner split(std::span<const int64_t> sizes, int64_t dim) {
  OuterLengthInner made;
  if (sizes.empty()) return made;
  if (dim < 0) dim += static_cast<int64_t>(sizes.size());
  for (size_t d = 0; d < sizes.size(); ++d) {
    int64_t& part = d < static_cast<size_t>(dim) ? made.outer : d > static_cast<size_t>(dim) ? made.inner : made.length;
    part *= sizes[d];
  }
  return made;
}

std::vector<int64_t> packed_strides(std::span<const int64_t> sizes) {
  std::vector<int64_t> strides(sizes.size());
  int64_t step = 1;
  for (size_t d = sizes.size(); d-- > 0; step *= sizes[d]) strides[d] = step;
  return strides;
}

uint64_t float_bits(double x, DType dtype) {
  if (dtype == DType::kFloat64) return std::bit_cast<uint64_t>(x);
  if (dtype == DType::kFloat16) return std::bit_cast<uint16_t>(static_cast<_Float16>(static_cast<float>(x)));
  const auto wide = std::bit_cast<uint32_t>(static_cast<float>(x));
  if (dtype == DType::kFloat32) return wide;
  if ((wide & 0x7FFFFFFF) > 0x7F800000) return 0x7FC0;
  return (wide + 0x7FFF + (wide >> 16 & 1)) >> 16;  // bfloat16.
}

DType part_of(DType dtype) {
  switch (dtype) {
    case DType::kComplex32:
      return DType::kFloat16;
    case DType::kComplex64:
      return DType::kFloat32;
    case DType::kComplex128:
      return DType::kFloat64;
    default:
      return dtype;
  }
}

OpTensor parts_of(const OpTensor& tensor) {
  OpTensor parts = tensor;
  parts.dtype = part_of(tensor.dtype);
  for (int64_t& stride : parts.strides) stride *= 2;
  parts.sizes.push_back(2);
  parts.strides.push_back(1);
  return parts;
}

// --- the node --------------------------------------------------------------------------------------------------------

const ir::Arg* OpPlanner::argument(std::string_view name) const {
  const ir::Arg* const found = ir::find_argument(node_, name);
  return found == nullptr || found->tag == ArgTag::kNone ? nullptr : found;
}

int64_t OpPlanner::value(ir::Sym symbol) {
  symbols_->push_back(symbol);
  return values_[symbol];
}

namespace {

// Whether a number argument is a float or complex number.
bool holds_float(const ir::Arg& arg) {
  return arg.tag == ArgTag::kFloat || arg.tag == ArgTag::kComplex ||
         (arg.tag == ArgTag::kScalarTensor && ir::is_float(static_cast<DType>(arg.b & 0xFF)));
}

}  // namespace

int64_t OpPlanner::integer(std::string_view name, int64_t otherwise) {
  const ir::Arg* const given = argument(name);
  if (given == nullptr) return otherwise;
  return holds_float(*given) ? static_cast<int64_t>(std::bit_cast<double>(value(given->a))) : value(given->a);
}

double OpPlanner::number(std::string_view name, double otherwise) {
  const ir::Arg* const given = argument(name);
  if (given == nullptr) return otherwise;
  return holds_float(*given) ? std::bit_cast<double>(value(given->a)) : static_cast<double>(value(given->a));
}

std::vector<int64_t> OpPlanner::integers(std::string_view name) {
  std::vector<int64_t> all;
  const ir::Arg* const given = argument(name);
  if (given == nullptr) return all;
  for (const ir::Arg& item : given->items) all.push_back(value(item.a));
  return all;
}

uint64_t OpPlanner::bits(std::string_view name, DType dtype) {
  if (ir::is_float(dtype)) return float_bits(number(name), dtype);
  if (dtype == DType::kBool) return number(name) != 0 ? 1 : 0;
  return static_cast<uint64_t>(integer(name));
}

OpTensor OpPlanner::tensor_of(uint32_t index) const {
  const ir::View& view = graph_.views[index];
  OpTensor tensor;
  tensor.view = index;
  tensor.dtype = view.dtype;
  if (view.dynamic) return tensor;
  tensor.location = {view.buffer, static_cast<uint64_t>(values_[view.offset]) * ir::item_size(view.dtype)};
  for (size_t d = 0; d < view.sizes.size(); ++d) {
    tensor.sizes.push_back(values_[view.sizes[d]]);
    tensor.strides.push_back(values_[view.strides[d]]);
  }
  return tensor;
}

std::optional<OpTensor> OpPlanner::tensor(std::string_view name) {
  const ir::Arg* const given = argument(name);
  if (given == nullptr || given->tag != ArgTag::kView) return std::nullopt;
  return tensor_of(given->a);
}

std::optional<std::pair<OpTensor, size_t>> OpPlanner::mask() const {
  const ir::Arg* const list = argument("indices");
  if (list == nullptr || list->tag != ArgTag::kList) return std::nullopt;
  std::optional<std::pair<OpTensor, size_t>> found;
  for (size_t d = 0; d < list->items.size(); ++d) {
    if (list->items[d].tag != ArgTag::kView) continue;
    if (found) return std::nullopt;
    found.emplace(tensor_of(list->items[d].a), d);
  }
  const bool is_mask = found && (found->first.dtype == DType::kBool || found->first.dtype == DType::kUInt8);
  return is_mask ? found : std::nullopt;
}

std::optional<OpTensor> OpPlanner::result(size_t i) {
  const ir::OpDesc& desc = ir::op_desc(node_.opcode);
  if (i >= node_.results.size() || i >= desc.results.size()) return std::nullopt;
  const ir::Arg& made = node_.results[i];
  if (made.tag == ArgTag::kView && !graph_.views[made.a].dynamic) return tensor_of(made.a);
  const int8_t alias = desc.results[i].alias;
  if (alias < 0 || node_.args[static_cast<size_t>(alias)].tag != ArgTag::kView) return std::nullopt;
  return tensor_of(node_.args[static_cast<size_t>(alias)].a);
}

std::optional<OpTensor> OpPlanner::listed_result(size_t list, size_t i) const {
  if (list >= node_.results.size() || node_.results[list].tag != ArgTag::kList) return std::nullopt;
  const std::vector<ir::Arg>& items = node_.results[list].items;
  if (i >= items.size() || items[i].tag != ArgTag::kView) return std::nullopt;
  return tensor_of(items[i].a);
}

std::optional<uint32_t> OpPlanner::dynamic_result(size_t i) const {
  if (i >= node_.results.size() || node_.results[i].tag != ArgTag::kView) return std::nullopt;
  return graph_.views[node_.results[i].a].dynamic ? std::optional(node_.results[i].a) : std::nullopt;
}

// --- its plan --------------------------------------------------------------------------------------------------------

Location OpPlanner::scratch(uint64_t nbytes) {
  plan_->scratch.push_back(std::max<uint64_t>(nbytes, 8));
  return {kScratch + static_cast<uint32_t>(plan_->scratch.size() - 1), 0};
}

// Adds a copy. Adjacent dims that one stride can describe on both sides are merged.
void OpPlanner::add_copy(Location from, DType from_type, std::span<const int64_t> from_strides, const OpTensor& to) {
  if (from_type != to.dtype && (ir::is_complex(from_type) || ir::is_complex(to.dtype))) {
    return add_parts_copy(from, from_type, from_strides, to);
  }
  StridedMove moved{from, to.location, from_type, to.dtype, {}, {}, {}};
  for (size_t d = 0; d < to.sizes.size(); ++d) {
    if (to.sizes[d] == 1) continue;
    // All elements are written to one location, so only the last one remains.
    if (to.strides[d] == 0 && to.sizes[d] > 1) {
      moved.from.offset += static_cast<uint64_t>((to.sizes[d] - 1) * from_strides[d]) * ir::item_size(from_type);
      continue;
    }
    if (!moved.sizes.empty() && moved.from_strides.back() == from_strides[d] * to.sizes[d] &&
        moved.to_strides.back() == to.strides[d] * to.sizes[d]) {
      moved.sizes.back() *= to.sizes[d];
      moved.from_strides.back() = from_strides[d];
      moved.to_strides.back() = to.strides[d];
      continue;
    }
    moved.sizes.push_back(to.sizes[d]);
    moved.from_strides.push_back(from_strides[d]);
    moved.to_strides.push_back(to.strides[d]);
  }
  if (to.count() != 0) plan_->steps.emplace_back(std::move(moved));
}

void OpPlanner::add_parts_copy(Location from, DType from_type, std::span<const int64_t> from_strides,
                               const OpTensor& to) {
  if (to.dtype == DType::kBool) {  // Whether they are not 0.
    OpTensor elements = to, truths = to;
    elements.dtype = from_type;
    elements.strides = truths.strides = packed_strides(to.sizes);
    elements.location = scratch(elements.nbytes());
    truths.location = scratch(truths.nbytes());
    add_copy(from, from_type, from_strides, elements);
    launch(KernelFile::kComplex, "complex_pointwise",
           ComplexArguments{.count = to.count(),
                            .dtype = static_cast<i64>(part_of(from_type)),
                            .out_dtype = static_cast<i64>(DType::kBool),
                            .what = ComplexOp::kNotEqual},
           blocks_for(to.count()))
        .at(&ComplexArguments::a, elements.location)
        .at(&ComplexArguments::out, truths.location);
    return add_copy(truths.location, DType::kBool, truths.strides, to);
  }
  std::vector<int64_t> strides(from_strides.begin(), from_strides.end());
  if (ir::is_complex(from_type)) {
    for (int64_t& stride : strides) stride *= 2;
    if (ir::is_complex(to.dtype)) {
      strides.push_back(1);
      return add_copy(from, part_of(from_type), strides, parts_of(to));
    }
    return add_copy(from, part_of(from_type), strides, to);  // Drops the imaginary part.
  }
  OpTensor part = parts_of(to);
  part.sizes.pop_back();
  part.strides.pop_back();
  add_copy(from, from_type, strides, part);
  part.location.offset += ir::item_size(part.dtype);
  const Location nothing = scratch(8);
  zero(nothing, 8);
  add_copy(nothing, part.dtype, std::vector<int64_t>(strides.size()), part);
}

void OpPlanner::copy(const OpTensor& from, const OpTensor& to) {
  std::vector<int64_t> strides(to.sizes.size());
  const size_t missing = to.sizes.size() - std::min(from.sizes.size(), to.sizes.size());
  for (size_t d = missing; d < to.sizes.size(); ++d) {
    strides[d] = from.sizes[d - missing] == 1 ? 0 : from.strides[d - missing];
  }
  add_copy(from.location, from.dtype, strides, to);
}

Location OpPlanner::packed(const OpTensor& tensor, DType dtype) {
  if (tensor.dtype == dtype && tensor.is_packed()) return tensor.location;
  OpTensor there = tensor;
  there.dtype = dtype;
  there.strides = packed_strides(tensor.sizes);
  there.location = scratch(there.nbytes());
  copy(tensor, there);
  return there.location;
}

OpTensor OpPlanner::packed_tensor(const OpTensor& tensor, DType dtype) {
  OpTensor made = tensor;
  made.location = packed(tensor, dtype);
  made.dtype = dtype;
  made.strides = packed_strides(tensor.sizes);
  return made;
}

OpTensor OpPlanner::without_overlap(const OpTensor& tensor, const OpTensor& written) {
  if (tensor.location.buffer != written.location.buffer) return tensor;
  OpTensor there = tensor;
  there.strides = packed_strides(tensor.sizes);
  there.location = scratch(there.nbytes());
  copy(tensor, there);
  return there;
}

bool OpPlanner::is_read(uint32_t buffer) const {
  bool read = false;
  ir::for_each_access(node_, [&](uint32_t view, ir::Access access) {
    read |= graph_.views[view].buffer == buffer && (access == ir::Access::kReads || access == ir::Access::kUpdates);
  });
  return read;
}

Location OpPlanner::output(const OpTensor& to) {
  if (to.is_packed() && !is_read(to.location.buffer)) return to.location;
  const Location location = scratch(to.nbytes());
  deferred_copies_.push_back({location, to});
  return location;
}

void OpPlanner::finish() {
  for (const DeferredCopy& deferred : deferred_copies_)
    add_copy(deferred.from, deferred.to.dtype, packed_strides(deferred.to.sizes), deferred.to);
  deferred_copies_.clear();
}

uint32_t OpPlanner::add_operand(int64_t dim, std::string message) {
  plan_->operands.push_back({number_, op(), dim, std::move(message)});
  return static_cast<uint32_t>(plan_->operands.size() - 1);
}

uint32_t OpPlanner::add_described_operand(std::string (*describe)(int64_t index, int64_t bound)) {
  const uint32_t operand = add_operand(-1);
  plan_->operands[operand].describe = describe;
  return operand;
}

Status make_result(OpPlanner& planner, DType dtype, const std::vector<int64_t>& sizes, const MakeResult& make) {
  if (const std::optional<OpTensor> to = planner.result(0)) {
    if (to->dtype != dtype || to->sizes != sizes) return unsupported("into another dtype or size");
    const Location out = planner.output(*to);
    make(&planner.plan().steps, out);
    return {};
  }
  const std::optional<uint32_t> view = planner.dynamic_result(0);
  if (!view) return unsupported("without a result");
  const Location nothing = planner.scratch(8);
  planner.zero(nothing, 8);
  planner.plan().count = nothing;
  const Location out{planner.graph().views[*view].buffer, 0};
  planner.plan().plan_rest = [=, view = *view](int64_t, OpPlan* rest, std::vector<DynamicResult>* results) {
    results->push_back({view, dtype, sizes});
    make(&rest->steps, out);
    return Status();
  };
  return {};
}

// --- the ops ---------------------------------------------------------------------------------------------------------

namespace {

// The plan that the op table names.
const NamedPlan* table_plan(ir::Opcode opcode, bool of_complex) {
  const auto plan = [of_complex](const auto& planned) { return of_complex ? planned.complex : planned.real; };
  if (opcode < ir::kFirstOpaque) {
    const auto* const found = std::ranges::lower_bound(kPlannedOps, opcode, {}, &PlannedOp::opcode);
    return found != std::end(kPlannedOps) && found->opcode == opcode ? plan(*found) : nullptr;
  }
  const auto* const found = std::ranges::find(kPlannedNames, ir::op_desc(opcode).name, &PlannedName::name);
  return found != std::end(kPlannedNames) ? plan(*found) : nullptr;
}

}  // namespace

const NamedPlan* find_op_plan(ir::Opcode opcode, bool of_complex) {
  if (of_complex) {
    if (const NamedPlan* const plan = table_plan(opcode, true)) return plan;
  }
  const NamedPlan* const plan = table_plan(opcode, false);
  return plan != nullptr ? plan : lowered_plan(opcode);
}

}  // namespace torch_remote::worker::cuda
