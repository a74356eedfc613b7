#include "worker/targets/cuda/ops/op_select.h"

#include <algorithm>
#include <string>
#include <utility>

#include "worker/targets/cuda/kernels/arguments.h"
#include "worker/targets/cuda/kernels/search_arguments.h"
#include "worker/targets/cuda/ops/op_plans_generated.h"
#include "worker/targets/cuda/ops/op_sort.h"

// Results whose size depends on data: the GPU counts the elements, and the host reads the count.
namespace torch_remote::worker::cuda {
namespace {

using ir::DType;

// Counts the elements of `in` that are not 0. Returns the offset of each chunk's first one; the total comes last.
Location sum_set(PlanBuilder& plan, Location in, int64_t count, DType dtype) {
  plan.node().require(is_kernel_dtype(dtype));
  const int64_t chunks = (count + kSelectChunk - 1) / kSelectChunk;
  const Location counts = plan.scratch(8 * static_cast<uint64_t>(chunks + 1));
  plan.launch(KernelFile::kSelect, "select_count",
              SelectCountArguments{.count = count, .dtype = static_cast<i64>(dtype)}, chunks)
      .at(&SelectCountArguments::in, in)
      .at(&SelectCountArguments::counts, counts);
  plan.launch(KernelFile::kSelect, "select_sum", SelectSumArguments{.count = chunks}, 1)
      .at(&SelectSumArguments::counts, counts);
  return counts;
}
// The same; the host also reads the total.
Location count_set(PlanBuilder& plan, Location in, int64_t count, DType dtype) {
  const int64_t chunks = (count + kSelectChunk - 1) / kSelectChunk;
  const Location counts = sum_set(plan, in, count, dtype);
  plan.built().count = Location{counts.buffer, counts.offset + 8 * static_cast<uint64_t>(chunks)};
  return counts;
}

constexpr Location result(uint32_t buffer) { return {buffer, 0}; }

Status select(PlanBuilder& plan, uint32_t to, const OpTensor& mask, Location in, const OpTensor* from,
              Location from_location) {
  const int64_t count = mask.count();
  const Location counts = count_set(plan, in, count, mask.dtype);
  SelectPositionsArguments arguments{.count = count,
                                     .dtype = static_cast<i64>(mask.dtype),
                                     .rank = static_cast<i64>(mask.sizes.size()),
                                     .item = from != nullptr ? ir::item_size(from->dtype) : 8};
  if (from == nullptr && mask.sizes.size() > kMaxDims) return unsupported("of so many dims");
  for (size_t d = 0; d < mask.sizes.size() && d < kMaxDims; ++d) arguments.sizes[d] = mask.sizes[d];
  const uint32_t buffer = plan.node().graph().views[to].buffer;
  const DType dtype = from != nullptr ? from->dtype : DType::kInt64;
  const bool is_from = from != nullptr;
  plan.built().plan_rest = [=](int64_t found, OpPlan* rest, std::vector<DynamicResult>* results) {
    DynamicResult made{to, dtype, {found}};
    SelectPositionsArguments all = arguments;
    if (!is_from) {  // As on the CPU, the indices of one dim are contiguous.
      made.sizes.push_back(arguments.rank);
      made.strides = {1, found};
      all.dim_stride = found;
    }
    results->push_back(std::move(made));
    if (found == 0 || (!is_from && arguments.rank == 0)) return Status();
    const int64_t chunks = (count + kSelectChunk - 1) / kSelectChunk;
    LaunchBuilder(&rest->steps, KernelFile::kSelect, "select_positions", all, chunks)
        .at(&SelectPositionsArguments::in, in)
        .at(&SelectPositionsArguments::counts, counts)
        .at(is_from ? &SelectPositionsArguments::values : &SelectPositionsArguments::positions, result(buffer))
        .at(&SelectPositionsArguments::from, from_location);
    return Status();
  };
  return {};
}

// What repeat_count reports: a negative number of repeats, or the total.
std::string describe_repeats(int64_t repeats, int64_t) {
  return repeats < 0 ? "repeats can not be negative" : "allocated size does not match required size";
}

// Runs of equal elements, after sorting or in the given order.
Status unique(OpNode& node, PlanBuilder& plan, bool sorts) {
  const std::optional<OpTensor> self = node.tensor("self");
  const std::optional<uint32_t> to = node.dynamic_result(0);
  if (!self || !to || node.has("dim")) return unsupported("along a dim");
  const std::optional<uint32_t> inverse = node.dynamic_result(1), counts = node.dynamic_result(2);
  const bool has_inverse = node.flag("return_inverse"), has_counts = node.flag("return_counts");
  const int64_t count = self->count();
  const Location in = plan.packed(*self);
  const OuterLengthInner dims{1, count, 1};
  Sorted sorted{plan.scratch(8 * static_cast<uint64_t>(count)), {}};
  if (sorts) {
    if (Status status = sort_tensor(plan, *self, in, dims, false, &sorted); !status.ok()) return status;
  } else {
    plan.launch(KernelFile::kSort, "sort_keys",
                SortKeysArguments{.length = count, .dtype = static_cast<i64>(self->dtype)}, blocks_for(count))
        .at(&SortKeysArguments::in, in)
        .at(&SortKeysArguments::keys, sorted.keys);
  }
  const Location flags = plan.scratch(static_cast<uint64_t>(count));
  plan.launch(KernelFile::kSelect, "unique_flags",
              UniqueFlagsArguments{.count = count, .floats = ir::is_float(self->dtype) ? 1 : 0}, blocks_for(count))
      .at(&UniqueFlagsArguments::keys, sorted.keys)
      .at(&UniqueFlagsArguments::flags, flags);
  const Location sums = count_set(plan, flags, count, DType::kBool);
  const Location begins = plan.scratch(8 * static_cast<uint64_t>(count));
  const ir::Graph& graph = node.graph();
  const auto buffer_of = [&](std::optional<uint32_t> view) { return view ? graph.views[*view].buffer : kNoLocation; };
  const uint32_t to_buffer = buffer_of(to), inverse_buffer = buffer_of(inverse), counts_buffer = buffer_of(counts);
  const UniqueWriteArguments write{.count = count, .item = ir::item_size(self->dtype)};
  // NOLINTNEXTLINE(clang-analyzer-optin.performance.Padding): one a plan
  plan.built().plan_rest = [=, dtype = self->dtype, sizes = self->sizes](int64_t found, OpPlan* rest,
                                                                         std::vector<DynamicResult>* results) {
    results->push_back({*to, dtype, {found}});
    if (inverse) results->push_back({*inverse, DType::kInt64, has_inverse ? sizes : std::vector<int64_t>{0}});
    if (counts) results->push_back({*counts, DType::kInt64, {has_counts ? found : 0}});
    if (count == 0) return Status();
    const int64_t chunks = (count + kSelectChunk - 1) / kSelectChunk;
    LaunchBuilder(&rest->steps, KernelFile::kSelect, "unique_write", write, chunks)
        .at(&UniqueWriteArguments::in, in)
        .at(&UniqueWriteArguments::flags, flags)
        .at(&UniqueWriteArguments::counts, sums)
        .at(&UniqueWriteArguments::values, result(to_buffer))
        .at(&UniqueWriteArguments::begins, begins)
        .at(&UniqueWriteArguments::sorted, sorted.positions)
        .at(&UniqueWriteArguments::inverse, result(has_inverse ? inverse_buffer : kNoLocation));
    if (counts && has_counts) {
      LaunchBuilder(&rest->steps, KernelFile::kSelect, "unique_count",
                    UniqueCountArguments{.count = found, .end = count}, blocks_for(found))
          .at(&UniqueCountArguments::begins, begins)
          .at(&UniqueCountArguments::out, result(counts_buffer));
    }
    return Status();
  };
  return {};
}

}  // namespace

Status select_plans::nonzero(OpNode& node, PlanBuilder& plan) {
  const std::optional<OpTensor> self = node.tensor("self");
  const std::optional<uint32_t> to = node.dynamic_result(0);
  if (!self || !to) return unsupported("of a known size");
  OpTensor set = *self;
  if (ir::is_complex(set.dtype)) set.dtype = DType::kBool;
  return select(plan, *to, set, plan.packed(*self, set.dtype), nullptr, {});
}

// A fixed number of indices, followed by a fill value.
Status select_plans::nonzero_static(OpNode& node, PlanBuilder& plan) {
  const std::optional<OpTensor> self = node.tensor("self"), to = node.result(0);
  if (!self || !to || to->sizes.size() != 2) return unsupported("without a result");
  if (to->dtype != DType::kInt64 || to->sizes[1] != static_cast<int64_t>(self->sizes.size())) {
    return unsupported("into another size or dtype");
  }
  if (self->sizes.size() > kMaxDims) return unsupported("of so many dims");
  const int64_t count = self->count(), chunks = (count + kSelectChunk - 1) / kSelectChunk;
  const DType dtype = ir::is_complex(self->dtype) ? DType::kBool : self->dtype;
  const Location out = plan.output(*to);
  plan.fill(out, to->count(), DType::kInt64, static_cast<uint64_t>(node.integer("fill_value", -1)));
  if (count == 0 || to->count() == 0) return {};
  SelectPositionsArguments arguments{.count = count,
                                     .dtype = static_cast<i64>(dtype),
                                     .rank = to->sizes[1],
                                     .item = 8,
                                     .dim_stride = 1,
                                     .position_stride = to->sizes[1],
                                     .most = to->sizes[0]};
  std::ranges::copy(self->sizes, arguments.sizes);
  const Location in = plan.packed(*self, dtype), counts = sum_set(plan, in, count, dtype);
  plan.launch(KernelFile::kSelect, "select_positions", arguments, chunks)
      .at(&SelectPositionsArguments::in, in)
      .at(&SelectPositionsArguments::counts, counts)
      .at(&SelectPositionsArguments::positions, out);
  return {};
}

// Repeats each position of `repeats` as often as its value says. The host reads the total, or the call gives it.
Status select_plans::repeat_positions(OpNode& node, PlanBuilder& plan) {
  const std::optional<OpTensor> repeats = node.tensor("repeats"), to = node.result(0);
  const std::optional<uint32_t> view = node.dynamic_result(0);
  if (!repeats || (!view && !to)) return unsupported("without a result");
  if (to && to->dtype != repeats->dtype) return unsupported("into another dtype");
  const int64_t count = repeats->count();
  const bool says = node.has("output_size");
  const int64_t size = to ? to->count() : says ? node.integer("output_size") : -1;
  const Location numbers = plan.packed(*repeats, DType::kInt64), sums = plan.scratch(8 * static_cast<uint64_t>(count)),
                 total = plan.scratch(8);
  plan.launch(KernelFile::kScan, "scan_sum_int_rows",
              ScanArguments{.length = count,
                            .in_dtype = static_cast<i64>(DType::kInt64),
                            .out_dtype = static_cast<i64>(DType::kInt64)},
              count == 0 ? 0 : 1)
      .at(&ScanArguments::in, numbers)
      .at(&ScanArguments::out, sums);
  if (size >= 0) plan.add_described_operand(describe_repeats);
  plan.launch(KernelFile::kSelect, "repeat_count", RepeatCountArguments{.count = count, .found = size}, 1)
      .at(&RepeatCountArguments::repeats, numbers)
      .at(&RepeatCountArguments::sums, sums)
      .at(&RepeatCountArguments::total, total)
      .failure([](const RepeatCountArguments& words) { return &words.failure; }, size >= 0);
  RepeatArguments arguments{.count = count, .found = size, .out_dtype = static_cast<i64>(repeats->dtype)};
  if (to) {
    if (count == 0) return {};
    plan.launch(KernelFile::kSelect, "repeat_positions", arguments, blocks_for(size))
        .at(&RepeatArguments::sums, sums)
        .at(&RepeatArguments::out, plan.output(*to));
    return {};
  }
  plan.built().count = total;
  const Location out = result(node.graph().views[*view].buffer);
  plan.built().plan_rest = [=, view = *view, dtype = repeats->dtype](int64_t found, OpPlan* rest,
                                                                     std::vector<DynamicResult>* results) -> Status {
    if (!says && found < 0) return {ErrorCode::kOpFailed, "repeats can not be negative", "RuntimeError"};
    RepeatArguments all = arguments;
    if (!says) all.found = found;
    results->push_back({view, dtype, {all.found}});
    if (all.found == 0 || count == 0) return {};
    LaunchBuilder(&rest->steps, KernelFile::kSelect, "repeat_positions", all, blocks_for(all.found))
        .at(&RepeatArguments::sums, sums)
        .at(&RepeatArguments::out, out);
    return {};
  };
  return {};
}

Status select_plans::masked_select(OpNode& node, PlanBuilder& plan) {
  const std::optional<OpTensor> self = node.tensor("self"), mask = node.tensor("mask");
  const std::optional<uint32_t> to = node.dynamic_result(0);
  if (!self || !mask || !to) return unsupported("of a known size");
  // Broadcasts both to a common size.
  OpTensor whole = *self;
  whole.sizes.assign(std::max(self->sizes.size(), mask->sizes.size()), 1);
  for (const OpTensor* const one : {&*self, &*mask}) {
    const size_t missing = whole.sizes.size() - one->sizes.size();
    for (size_t d = 0; d < one->sizes.size(); ++d) {
      if (one->sizes[d] != 1) whole.sizes[missing + d] = one->sizes[d];
    }
  }
  whole.strides = packed_strides(whole.sizes);
  OpTensor set = whole;
  set.dtype = mask->dtype;
  whole.location = plan.expanded(*self, self->dtype, whole.sizes);
  set.location = plan.expanded(*mask, mask->dtype, set.sizes);
  return select(plan, *to, set, set.location, &whole, whole.location);
}

Status select_plans::masked_scatter(OpNode& node, PlanBuilder& plan) {
  const std::optional<OpTensor> self = node.tensor("self"), mask = node.tensor("mask"), source = node.tensor("source"),
                                to = node.result(0);
  if (!self || !mask || !source || !to || source->dtype != to->dtype) return unsupported("of two dtypes");
  const int64_t count = to->count(), chunks = (count + kSelectChunk - 1) / kSelectChunk;
  if (count == 0) return {};
  const OpTensor made = plan.scratch_tensor(to->dtype, to->sizes), set = plan.scratch_tensor(mask->dtype, to->sizes);
  plan.copy(*self, made);
  plan.copy(*mask, set);
  const Location from = plan.packed(*source), counts = sum_set(plan, set.location, count, set.dtype);
  plan.add_operand(-1);
  plan.launch(KernelFile::kSelect, "select_scatter",
              SelectScatterArguments{.count = count,
                                     .dtype = static_cast<i64>(set.dtype),
                                     .item = ir::item_size(to->dtype),
                                     .chunks = chunks,
                                     .bound = source->count()},
              chunks)
      .at(&SelectScatterArguments::in, set.location)
      .at(&SelectScatterArguments::counts, counts)
      .at(&SelectScatterArguments::source, from)
      .at(&SelectScatterArguments::out, made.location)
      .failure([](const SelectScatterArguments& words) { return &words.failure; });
  plan.copy(made, *to);
  return {};
}

// The gradients that the mask selected, followed by zeros.
Status select_plans::masked_scatter_backward(OpNode& node, PlanBuilder& plan) {
  const std::optional<OpTensor> grad = node.tensor("grad_output"), mask = node.tensor("mask"), to = node.result(0);
  if (!grad || !mask || !to || grad->dtype != to->dtype) return unsupported("of two dtypes");
  const Location out = plan.output(*to);
  plan.zero(out, to->nbytes());
  const int64_t count = grad->count(), chunks = (count + kSelectChunk - 1) / kSelectChunk;
  if (count == 0 || to->count() == 0) return {};
  const OpTensor set = plan.copy_of(*mask, mask->dtype, grad->sizes);
  const Location from = plan.packed(*grad), counts = sum_set(plan, set.location, count, set.dtype);
  plan.launch(KernelFile::kSelect, "select_positions",
              SelectPositionsArguments{.count = count,
                                       .dtype = static_cast<i64>(set.dtype),
                                       .item = ir::item_size(to->dtype),
                                       .most = to->count()},
              chunks)
      .at(&SelectPositionsArguments::in, set.location)
      .at(&SelectPositionsArguments::counts, counts)
      .at(&SelectPositionsArguments::values, out)
      .at(&SelectPositionsArguments::from, from);
  return {};
}

Status select_plans::unique_sorted(OpNode& node, PlanBuilder& plan) { return unique(node, plan, true); }
Status select_plans::unique_runs(OpNode& node, PlanBuilder& plan) { return unique(node, plan, false); }

std::optional<std::pair<OpTensor, size_t>> find_mask(const OpNode& node) {
  const ir::Arg* const list = node.argument("indices");
  if (list == nullptr || list->tag != ir::ArgTag::kList) return std::nullopt;
  std::optional<std::pair<OpTensor, size_t>> found;
  for (size_t d = 0; d < list->items.size(); ++d) {
    if (list->items[d].tag != ir::ArgTag::kView) continue;
    if (found) return std::nullopt;
    found.emplace(node.tensor_of(list->items[d].a), d);
  }
  const bool is_mask = found && (found->first.dtype == DType::kBool || found->first.dtype == DType::kUInt8);
  return is_mask ? found : std::nullopt;
}

// x[:, mask]: first the positions that the mask selects, then the elements there.
Status index_by_mask(OpNode& node, PlanBuilder& plan) {
  const std::optional<OpTensor> self = node.tensor("self");
  const std::optional<uint32_t> to = node.dynamic_result(0);
  const auto mask = find_mask(node);
  if (!self || !to || !mask) return unsupported("indices that are no integers and no mask");
  const auto& [set, first] = *mask;
  OuterLengthInner dims;
  std::vector<int64_t> sizes;
  for (size_t d = 0; d < self->sizes.size(); ++d) {
    const bool is_masked = d >= first && d < first + set.sizes.size();
    int64_t& part = d < first ? dims.outer : is_masked ? dims.length : dims.inner;
    part *= self->sizes[d];
    if (d == first) sizes.push_back(0);
    if (!is_masked) sizes.push_back(self->sizes[d]);
  }
  if (set.sizes.empty() || first > self->sizes.size() || set.sizes.size() > self->sizes.size() - first ||
      set.count() != dims.length) {
    return unsupported("a mask of other sizes");
  }
  const Location from = plan.packed(*self), in = plan.packed(set);
  const int64_t count = set.count();
  const Location counts = count_set(plan, in, count, set.dtype);
  const SelectPositionsArguments arguments{
      .count = count, .dtype = static_cast<i64>(set.dtype), .rank = 1, .item = 8, .sizes = {count}};
  const Location positions{kScratch + static_cast<uint32_t>(plan.built().scratch.size()), 0};
  const uint32_t buffer = node.graph().views[*to].buffer;
  const int64_t item = ir::item_size(self->dtype);
  plan.built().plan_rest = [=, view = *to, dtype = self->dtype, at = first](int64_t found, OpPlan* rest,
                                                                            std::vector<DynamicResult>* results) {
    DynamicResult made{view, dtype, sizes};
    made.sizes[at] = found;
    results->push_back(std::move(made));
    const int64_t all = dims.outer * found * dims.inner;
    if (all == 0) return Status();
    rest->scratch.push_back(8 * static_cast<uint64_t>(found));
    const int64_t chunks = (count + kSelectChunk - 1) / kSelectChunk;
    LaunchBuilder(&rest->steps, KernelFile::kSelect, "select_positions", arguments, chunks)
        .at(&SelectPositionsArguments::in, in)
        .at(&SelectPositionsArguments::counts, counts)
        .at(&SelectPositionsArguments::positions, positions);
    IndexArguments index{.count = all, .rank = 3, .indices = 1, .sizes = {dims.outer, found, dims.inner}};
    index.self_strides[0] = dims.length * dims.inner;
    index.self_strides[2] = 1;
    index.value_strides[0] = found * dims.inner;
    index.value_strides[1] = dims.inner;
    index.value_strides[2] = 1;
    index.index_strides[0][1] = 1;
    index.steps[0] = dims.inner;
    index.bounds[0] = dims.length;
    index.item = item;
    LaunchBuilder(&rest->steps, KernelFile::kIndex, "index_read", index, blocks_for(all))
        .at(&IndexArguments::self, from)
        .at(&IndexArguments::values, result(buffer))
        .at(&IndexArguments::index, positions);
    return Status();
  };
  return {};
}

}  // namespace torch_remote::worker::cuda
