#include "worker/targets/cuda/ops/plan/plan_builder.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "ir/analysis.h"
#include "worker/targets/cuda/kernels/arguments.h"
#include "worker/targets/cuda/kernels/complex_arguments.h"

namespace torch_remote::worker::cuda {

using ir::DType;

PlanBuilder::PlanBuilder(OpNode& node, OpPlan* plan) : node_(node), plan_(plan) {
  ir::for_each_view(node.ir_node(), [&](uint32_t view, bool) {
    const OpTensor tensor = node.tensor_of(view);
    if (tensor.location.buffer == kNoLocation || tensor.count() == 0) return;
    uint64_t last = 0;  // The session has checked that the view is in its buffer.
    for (size_t d = 0; d < tensor.sizes.size(); ++d) {
      last += static_cast<uint64_t>(tensor.sizes[d] - 1) * static_cast<uint64_t>(tensor.strides[d]);
    }
    uint64_t& end = ends_[tensor.location.buffer];
    end = std::max(end, tensor.location.offset + (last + 1) * ir::item_size(tensor.dtype));
  });
}

Location PlanBuilder::scratch(uint64_t nbytes) {
  plan_->scratch.push_back(std::max<uint64_t>(nbytes, 8));
  return {kScratch + static_cast<uint32_t>(plan_->scratch.size() - 1), 0};
}

OpTensor PlanBuilder::scratch_tensor(DType dtype, std::vector<int64_t> sizes) {
  std::vector<int64_t> strides = packed_strides(sizes);
  OpTensor made{{}, dtype, std::move(sizes), std::move(strides)};
  made.location = scratch(made.nbytes());
  return made;
}

// Adds a copy. Adjacent dims that one stride can describe on both sides are merged.
void PlanBuilder::add_copy(Location from, DType from_type, std::span<const int64_t> from_strides, const OpTensor& to) {
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

void PlanBuilder::add_parts_copy(Location from, DType from_type, std::span<const int64_t> from_strides,
                                 const OpTensor& to) {
  if (to.dtype == DType::kBool) {  // Whether they are not 0.
    const OpTensor elements = scratch_tensor(from_type, to.sizes), truths = scratch_tensor(DType::kBool, to.sizes);
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

void PlanBuilder::copy(const OpTensor& from, const OpTensor& to) {
  std::vector<int64_t> strides(to.sizes.size());
  node_.require(from.sizes.size() <= to.sizes.size());
  const size_t missing = to.sizes.size() - std::min(from.sizes.size(), to.sizes.size());
  for (size_t d = missing; d < to.sizes.size(); ++d) {
    node_.require(from.sizes[d - missing] == 1 || from.sizes[d - missing] == to.sizes[d]);
    strides[d] = from.sizes[d - missing] == 1 ? 0 : from.strides[d - missing];
  }
  add_copy(from.location, from.dtype, strides, to);
}

void PlanBuilder::fill(Location to, int64_t count, DType dtype, uint64_t bits) {
  launch(KernelFile::kFill, "fill_bits", FillArguments{.count = count, .item = ir::item_size(dtype), .bits = bits},
         blocks_for(count), count == 1 ? 32 : 256)
      .at(&FillArguments::out, to);
}

OpTensor PlanBuilder::copy_of(const OpTensor& tensor, DType dtype, std::vector<int64_t> sizes) {
  OpTensor made = scratch_tensor(dtype, std::move(sizes));
  copy(tensor, made);
  return made;
}

Location PlanBuilder::packed(const OpTensor& tensor, DType dtype) {
  const bool fits = tensor.dtype == dtype && tensor.is_packed();
  return fits ? tensor.location : copy_of(tensor, dtype, tensor.sizes).location;
}

Location PlanBuilder::expanded(const OpTensor& tensor, DType dtype, const std::vector<int64_t>& sizes) {
  return tensor.sizes == sizes ? packed(tensor, dtype) : copy_of(tensor, dtype, sizes).location;
}

OpTensor PlanBuilder::packed_tensor(const OpTensor& tensor, DType dtype) {
  return {packed(tensor, dtype), dtype, tensor.sizes, packed_strides(tensor.sizes)};
}

OpTensor PlanBuilder::flat(const OpTensor& tensor, DType dtype) {
  return {packed(tensor, dtype), dtype, {tensor.count()}, {1}};
}

OpTensor PlanBuilder::absolute_values(const OpTensor& tensor) {
  const OpTensor made = scratch_tensor(part_of(tensor.dtype), tensor.sizes);
  const auto part = static_cast<i64>(made.dtype);
  launch(KernelFile::kComplex, "complex_pointwise",
         ComplexArguments{.count = made.count(), .dtype = part, .out_dtype = part, .what = ComplexOp::kAbs},
         blocks_for(made.count()))
      .at(&ComplexArguments::a, packed(tensor))
      .at(&ComplexArguments::out, made.location);
  return made;
}

OpTensor PlanBuilder::without_overlap(const OpTensor& tensor, const OpTensor& written) {
  const bool overlaps = tensor.location.buffer == written.location.buffer;
  return overlaps ? copy_of(tensor, tensor.dtype, tensor.sizes) : tensor;
}

bool PlanBuilder::is_read(uint32_t buffer) const {
  bool read = false;
  ir::for_each_access(node_.ir_node(), [&](uint32_t view, ir::Access access) {
    read |=
        node_.graph().views[view].buffer == buffer && (access == ir::Access::kReads || access == ir::Access::kUpdates);
  });
  return read;
}

Location PlanBuilder::output(const OpTensor& to) {
  OpTensor made = to;
  made.strides = packed_strides(to.sizes);
  return output(to, std::move(made), to.is_packed());
}

OpTensor PlanBuilder::output_tensor(const OpTensor& to) {
  return {output(to), to.dtype, to.sizes, packed_strides(to.sizes)};
}

Location PlanBuilder::output(const OpTensor& to, OpTensor made, bool fits) {
  if (fits && !is_read(to.location.buffer)) return to.location;
  made.location = scratch(made.nbytes());
  deferred_copies_.push_back({std::move(made), to});
  return deferred_copies_.back().from.location;
}

Status PlanBuilder::finish() {
  for (const DeferredCopy& deferred : deferred_copies_) copy(deferred.from, deferred.to);
  deferred_copies_.clear();
  const bool fits =
      node_.fits() && std::ranges::all_of(plan_->steps, [&](const OpStep& step) { return is_valid(step); });
  return fits ? Status() : unsupported("with sizes, dims or dtypes that do not match");
}

uint64_t PlanBuilder::end_of(uint32_t buffer) const {
  if (buffer >= kScratch) {
    const size_t piece = buffer - kScratch;
    return piece < plan_->scratch.size() ? plan_->scratch[piece] : 0;
  }
  const auto found = ends_.find(buffer);
  return found == ends_.end() ? 0 : found->second;
}

bool PlanBuilder::is_inside(const Location& at, int64_t item, std::span<const int64_t> sizes,
                            std::span<const int64_t> strides) const {
  if (std::ranges::any_of(sizes, [](int64_t size) { return size < 0; })) return false;
  if (std::ranges::find(sizes, 0) != sizes.end()) return true;
  int64_t first = 0, last = 0;  // Elements.
  for (size_t d = 0; d < sizes.size(); ++d) {
    int64_t reach = 0;
    if (__builtin_mul_overflow(sizes[d] - 1, strides[d], &reach)) return false;
    int64_t& edge = reach < 0 ? first : last;
    if (__builtin_add_overflow(edge, reach, &edge)) return false;
  }
  const auto offset = static_cast<int64_t>(at.offset);
  int64_t begin = 0, end = 0;  // Bytes.
  const bool overflows = __builtin_mul_overflow(first, item, &begin) || __builtin_add_overflow(begin, offset, &begin) ||
                         __builtin_mul_overflow(last, item, &end) || __builtin_add_overflow(end, offset, &end) ||
                         __builtin_add_overflow(end, item, &end);
  return !overflows && begin >= 0 && static_cast<uint64_t>(end) <= end_of(at.buffer);
}

bool PlanBuilder::is_valid(const OpStep& step) const {
  if (const auto* const moved = std::get_if<StridedMove>(&step)) {
    const bool converts = moved->from_type != moved->to_type;
    if (converts && !(is_kernel_dtype(moved->from_type) && is_kernel_dtype(moved->to_type))) return false;
    return is_inside(moved->from, ir::item_size(moved->from_type), moved->sizes, moved->from_strides) &&
           is_inside(moved->to, ir::item_size(moved->to_type), moved->sizes, moved->to_strides);
  }
  if (const auto* const fill = std::get_if<OpFill>(&step)) {
    const int64_t bytes[] = {static_cast<int64_t>(fill->nbytes)}, stride[] = {1};
    return is_inside(fill->to, 1, bytes, stride);
  }
  const auto* const launch = std::get_if<OpLaunch>(&step);
  return launch == nullptr || launch->grid <= kMaxGrid;
}

uint32_t PlanBuilder::add_operand(int64_t dim, std::string message) {
  plan_->operands.push_back({node_.index(), node_.op(), dim, std::move(message)});
  return static_cast<uint32_t>(plan_->operands.size() - 1);
}

uint32_t PlanBuilder::add_described_operand(std::string (*describe)(int64_t index, int64_t bound)) {
  const uint32_t operand = add_operand(-1);
  plan_->operands[operand].describe = describe;
  return operand;
}

Status make_result(PlanBuilder& plan, DType dtype, const std::vector<int64_t>& sizes, const MakeResult& make) {
  if (const std::optional<OpTensor> to = plan.node().result(0)) {
    if (to->dtype != dtype || to->sizes != sizes) return unsupported("into another dtype or size");
    const Location out = plan.output(*to);
    make(&plan.built().steps, out);
    return {};
  }
  const std::optional<uint32_t> view = plan.node().dynamic_result(0);
  if (!view) return unsupported("without a result");
  const Location nothing = plan.scratch(8);
  plan.zero(nothing, 8);
  plan.built().count = nothing;
  const Location out{plan.node().graph().views[*view].buffer, 0};
  plan.built().plan_rest = [=, view = *view](int64_t, OpPlan* rest, std::vector<DynamicResult>* results) {
    results->push_back({view, dtype, sizes});
    make(&rest->steps, out);
    return Status();
  };
  return {};
}

}  // namespace torch_remote::worker::cuda
