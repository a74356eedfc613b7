#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "worker/targets/cuda/kernels/arguments.h"
#include "worker/targets/cuda/kernels/search_arguments.h"
#include "worker/targets/cuda/ops/op_plan.h"
#include "worker/targets/cuda/ops/op_plans_generated.h"

// Results whose size depends on data: the GPU counts the elements, and the host reads the count.
namespace torch_remote::worker::cuda {
namespace {

using ir::DType;

// Counts the elements of `in` that are not 0. Returns the offset of each chunk's first one; the total comes last.
Location sum_set(OpPlanner& planner, Location in, int64_t count, DType dtype) {
  const int64_t chunks = (count + kSelectChunk - 1) / kSelectChunk;
  const Location counts = planner.scratch(8 * static_cast<uint64_t>(chunks + 1));
  planner
      .launch(KernelFile::kSelect, "select_count",
              SelectCountArguments{.count = count, .dtype = static_cast<i64>(dtype)}, chunks)
      .at(&SelectCountArguments::in, in)
      .at(&SelectCountArguments::counts, counts);
  planner.launch(KernelFile::kSelect, "select_sum", SelectSumArguments{.count = chunks}, 1)
      .at(&SelectSumArguments::counts, counts);
  return counts;
}
// The same; the host also reads the total.
Location count_set(OpPlanner& planner, Location in, int64_t count, DType dtype) {
  const int64_t chunks = (count + kSelectChunk - 1) / kSelectChunk;
  const Location counts = sum_set(planner, in, count, dtype);
  planner.plan().count = Location{counts.buffer, counts.offset + 8 * static_cast<uint64_t>(chunks)};
  return counts;
}

// A launch for the rest of a plan, complete except for addresses.
template <typename T>
OpLaunch rest_of(const char* kernel, const T& arguments, int64_t grid, std::vector<OpLaunch::Address> addresses) {
  OpLaunch launch;
  launch.file = KernelFile::kSelect;
  launch.kernel = kernel;
  launch.grid = static_cast<unsigned>(grid);
  launch.block = 256;
  launch.words.resize(sizeof(T) / 8);
  std::memcpy(launch.words.data(), &arguments, sizeof(T));
  launch.addresses = std::move(addresses);
  return launch;
}
template <typename T, typename U>
size_t word(U T::* member) {
  const T arguments;
  return static_cast<size_t>(reinterpret_cast<const char*>(&(arguments.*member)) -
                             reinterpret_cast<const char*>(&arguments)) /
         8;
}

constexpr Location result(uint32_t buffer) { return {buffer, 0}; }

Status select(OpPlanner& planner, const ir::Graph& graph, uint32_t to, const OpTensor& mask, Location in,
              const OpTensor* from, Location from_location) {
  const int64_t count = mask.count();
  const Location counts = count_set(planner, in, count, mask.dtype);
  SelectPositionsArguments arguments{.count = count,
                                     .dtype = static_cast<i64>(mask.dtype),
                                     .rank = static_cast<i64>(mask.sizes.size()),
                                     .item = from != nullptr ? ir::item_size(from->dtype) : 8};
  if (from == nullptr && mask.sizes.size() > kMaxDims) return unsupported("of so many dims");
  for (size_t d = 0; d < mask.sizes.size() && d < kMaxDims; ++d) arguments.sizes[d] = mask.sizes[d];
  const uint32_t buffer = graph.views[to].buffer;
  const DType dtype = from != nullptr ? from->dtype : DType::kInt64;
  const bool is_from = from != nullptr;
  planner.plan().plan_rest = [=](int64_t found, OpPlan* rest, std::vector<DynamicResult>* results) {
    DynamicResult made{to, dtype, {found}};
    SelectPositionsArguments all = arguments;
    if (!is_from) {  // As on the CPU, the indices of one dim are contiguous.
      made.sizes.push_back(arguments.rank);
      made.strides = {1, found};
      all.dim_stride = found;
    }
    results->push_back(std::move(made));
    if (found == 0 || (!is_from && arguments.rank == 0)) return Status();
    std::vector<OpLaunch::Address> addresses = {{word(&SelectPositionsArguments::in), in},
                                                {word(&SelectPositionsArguments::counts), counts}};
    if (is_from) {
      addresses.push_back({word(&SelectPositionsArguments::values), result(buffer)});
      addresses.push_back({word(&SelectPositionsArguments::from), from_location});
    } else {
      addresses.push_back({word(&SelectPositionsArguments::positions), result(buffer)});
    }
    const int64_t chunks = (count + kSelectChunk - 1) / kSelectChunk;
    rest->steps.emplace_back(rest_of("select_positions", all, chunks, std::move(addresses)));
    return Status();
  };
  return {};
}

// x[:, mask]: first the positions that the mask selects, then the elements there.
Status index_by_mask(OpPlanner& planner) {
  const std::optional<OpTensor> self = planner.tensor("self");
  const std::optional<uint32_t> to = planner.dynamic_result(0);
  const auto mask = planner.mask();
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
  if (set.sizes.empty() || set.count() != dims.length) return unsupported("a mask of other sizes");
  const Location from = planner.packed(*self), in = planner.packed(set);
  const int64_t count = set.count();
  const Location counts = count_set(planner, in, count, set.dtype);
  const SelectPositionsArguments arguments{
      .count = count, .dtype = static_cast<i64>(set.dtype), .rank = 1, .item = 8, .sizes = {count}};
  const Location positions{kScratch + static_cast<uint32_t>(planner.plan().scratch.size()), 0};
  const uint32_t buffer = planner.graph().views[*to].buffer;
  const int64_t item = ir::item_size(self->dtype);
  planner.plan().plan_rest = [=, view = *to, dtype = self->dtype, at = first](int64_t found, OpPlan* rest,
                                                                              std::vector<DynamicResult>* results) {
    DynamicResult made{view, dtype, sizes};
    made.sizes[at] = found;
    results->push_back(std::move(made));
    const int64_t all = dims.outer * found * dims.inner;
    if (all == 0) return Status();
    rest->scratch.push_back(8 * static_cast<uint64_t>(found));
    const int64_t chunks = (count + kSelectChunk - 1) / kSelectChunk;
    rest->steps.emplace_back(rest_of("select_positions", arguments, chunks,
                                     {{word(&SelectPositionsArguments::in), in},
                                      {word(&SelectPositionsArguments::counts), counts},
                                      {word(&SelectPositionsArguments::positions), positions}}));
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
    OpLaunch read = rest_of("index_read", index, blocks_for(all),
                            {{word(&IndexArguments::self), from},
                             {word(&IndexArguments::values), result(buffer)},
                             {word(&IndexArguments::index), positions}});
    read.file = KernelFile::kIndex;
    rest->steps.emplace_back(std::move(read));
    return Status();
  };
  return {};
}

// What repeat_count reports: a negative number of repeats, or the total.
std::string describe_repeats(int64_t repeats, int64_t) {
  return repeats < 0 ? "repeats can not be negative" : "allocated size does not match required size";
}

// Runs of equal elements, after sorting or in the given order.
Status unique(OpPlanner& planner, bool sorts) {
  const std::optional<OpTensor> self = planner.tensor("self");
  const std::optional<uint32_t> to = planner.dynamic_result(0);
  if (!self || !to || planner.has("dim")) return unsupported("along a dim");
  const std::optional<uint32_t> inverse = planner.dynamic_result(1), counts = planner.dynamic_result(2);
  const bool has_inverse = planner.flag("return_inverse"), has_counts = planner.flag("return_counts");
  const int64_t count = self->count();
  const Location in = planner.packed(*self);
  const OuterLengthInner dims{1, count, 1};
  Sorted sorted{planner.scratch(8 * static_cast<uint64_t>(count)), {}};
  if (sorts) {
    if (Status status = sort_tensor(planner, *self, in, dims, false, &sorted); !status.ok()) return status;
  } else {
    planner
        .launch(KernelFile::kSort, "sort_keys",
                SortKeysArguments{.length = count, .dtype = static_cast<i64>(self->dtype)}, blocks_for(count))
        .at(&SortKeysArguments::in, in)
        .at(&SortKeysArguments::keys, sorted.keys);
  }
  const Location flags = planner.scratch(static_cast<uint64_t>(count));
  planner
      .launch(KernelFile::kSelect, "unique_flags",
              UniqueFlagsArguments{.count = count, .floats = ir::is_float(self->dtype) ? 1 : 0}, blocks_for(count))
      .at(&UniqueFlagsArguments::keys, sorted.keys)
      .at(&UniqueFlagsArguments::flags, flags);
  const Location sums = count_set(planner, flags, count, DType::kBool);
  const Location begins = planner.scratch(8 * static_cast<uint64_t>(count));
  const ir::Graph& graph = planner.graph();
  const auto buffer_of = [&](std::optional<uint32_t> view) { return view ? graph.views[*view].buffer : kNoLocation; };
  const uint32_t to_buffer = buffer_of(to), inverse_buffer = buffer_of(inverse), counts_buffer = buffer_of(counts);
  const UniqueWriteArguments write{.count = count, .item = ir::item_size(self->dtype)};
  // NOLINTNEXTLINE(clang-analyzer-optin.performance.Padding): one a plan
  planner.plan().plan_rest = [=, dtype = self->dtype, sizes = self->sizes](int64_t found, OpPlan* rest,
                                                                           std::vector<DynamicResult>* results) {
    results->push_back({*to, dtype, {found}});
    if (inverse) results->push_back({*inverse, DType::kInt64, has_inverse ? sizes : std::vector<int64_t>{0}});
    if (counts) results->push_back({*counts, DType::kInt64, {has_counts ? found : 0}});
    if (count == 0) return Status();
    std::vector<OpLaunch::Address> addresses = {{word(&UniqueWriteArguments::in), in},
                                                {word(&UniqueWriteArguments::flags), flags},
                                                {word(&UniqueWriteArguments::counts), sums},
                                                {word(&UniqueWriteArguments::values), result(to_buffer)},
                                                {word(&UniqueWriteArguments::begins), begins}};
    if (sorts) addresses.push_back({word(&UniqueWriteArguments::sorted), sorted.positions});
    if (inverse && has_inverse) addresses.push_back({word(&UniqueWriteArguments::inverse), result(inverse_buffer)});
    const int64_t chunks = (count + kSelectChunk - 1) / kSelectChunk;
    rest->steps.emplace_back(rest_of("unique_write", write, chunks, std::move(addresses)));
    if (counts && has_counts) {
      rest->steps.emplace_back(rest_of(
          "unique_count", UniqueCountArguments{.count = found, .end = count}, blocks_for(found),
          {{word(&UniqueCountArguments::begins), begins}, {word(&UniqueCountArguments::out), result(counts_buffer)}}));
    }
    return Status();
  };
  return {};
}

}  // namespace

Status select_plans::nonzero(OpPlanner& planner) {
  const std::optional<OpTensor> self = planner.tensor("self");
  const std::optional<uint32_t> to = planner.dynamic_result(0);
  if (!self || !to) return unsupported("of a known size");
  OpTensor set = *self;
  if (ir::is_complex(set.dtype)) set.dtype = DType::kBool;
  return select(planner, planner.graph(), *to, set, planner.packed(*self, set.dtype), nullptr, {});
}

// A fixed number of indices, followed by a fill value.
Status select_plans::nonzero_static(OpPlanner& planner) {
  const std::optional<OpTensor> self = planner.tensor("self"), to = planner.result(0);
  if (!self || !to || to->sizes.size() != 2) return unsupported("without a result");
  if (self->sizes.size() > kMaxDims) return unsupported("of so many dims");
  const int64_t count = self->count(), chunks = (count + kSelectChunk - 1) / kSelectChunk;
  const DType dtype = ir::is_complex(self->dtype) ? DType::kBool : self->dtype;
  const Location out = planner.output(*to);
  planner
      .launch(KernelFile::kFill, "fill_bits",
              FillArguments{
                  .count = to->count(), .item = 8, .bits = static_cast<uint64_t>(planner.integer("fill_value", -1))},
              blocks_for(to->count()))
      .at(&FillArguments::out, out);
  if (count == 0 || to->count() == 0) return {};
  SelectPositionsArguments arguments{.count = count,
                                     .dtype = static_cast<i64>(dtype),
                                     .rank = to->sizes[1],
                                     .item = 8,
                                     .dim_stride = 1,
                                     .position_stride = to->sizes[1],
                                     .most = to->sizes[0]};
  std::ranges::copy(self->sizes, arguments.sizes);
  const Location in = planner.packed(*self, dtype), counts = sum_set(planner, in, count, dtype);
  planner.launch(KernelFile::kSelect, "select_positions", arguments, chunks)
      .at(&SelectPositionsArguments::in, in)
      .at(&SelectPositionsArguments::counts, counts)
      .at(&SelectPositionsArguments::positions, out);
  return {};
}

// Repeats each position of `repeats` as often as its value says. The host reads the total, or the call gives it.
Status select_plans::repeat_positions(OpPlanner& planner) {
  const std::optional<OpTensor> repeats = planner.tensor("repeats"), to = planner.result(0);
  const std::optional<uint32_t> view = planner.dynamic_result(0);
  if (!repeats || (!view && !to)) return unsupported("without a result");
  const int64_t count = repeats->count();
  const bool says = planner.has("output_size");
  const int64_t size = to ? to->count() : says ? planner.integer("output_size") : -1;
  const Location numbers = planner.packed(*repeats, DType::kInt64),
                 sums = planner.scratch(8 * static_cast<uint64_t>(count)), total = planner.scratch(8);
  planner
      .launch(KernelFile::kScan, "scan_sum_int_rows",
              ScanArguments{.length = count,
                            .in_dtype = static_cast<i64>(DType::kInt64),
                            .out_dtype = static_cast<i64>(DType::kInt64)},
              count == 0 ? 0 : 1)
      .at(&ScanArguments::in, numbers)
      .at(&ScanArguments::out, sums);
  if (size >= 0) planner.add_described_operand(describe_repeats);
  planner.launch(KernelFile::kSelect, "repeat_count", RepeatCountArguments{.count = count, .found = size}, 1)
      .at(&RepeatCountArguments::repeats, numbers)
      .at(&RepeatCountArguments::sums, sums)
      .at(&RepeatCountArguments::total, total)
      .failure([](const RepeatCountArguments& words) { return &words.failure; }, size >= 0);
  RepeatArguments arguments{.count = count, .found = size, .out_dtype = static_cast<i64>(repeats->dtype)};
  if (to) {
    if (count == 0) return {};
    planner.launch(KernelFile::kSelect, "repeat_positions", arguments, blocks_for(size))
        .at(&RepeatArguments::sums, sums)
        .at(&RepeatArguments::out, planner.output(*to));
    return {};
  }
  planner.plan().count = total;
  const Location out = result(planner.graph().views[*view].buffer);
  planner.plan().plan_rest = [=, view = *view, dtype = repeats->dtype](int64_t found, OpPlan* rest,
                                                                       std::vector<DynamicResult>* results) -> Status {
    if (!says && found < 0) return {ErrorCode::kOpFailed, "repeats can not be negative", "RuntimeError"};
    RepeatArguments all = arguments;
    if (!says) all.found = found;
    results->push_back({view, dtype, {all.found}});
    if (all.found == 0 || count == 0) return {};
    rest->steps.emplace_back(rest_of("repeat_positions", all, blocks_for(all.found),
                                     {{word(&RepeatArguments::sums), sums}, {word(&RepeatArguments::out), out}}));
    return {};
  };
  return {};
}

Status select_plans::masked_select(OpPlanner& planner) {
  const std::optional<OpTensor> self = planner.tensor("self"), mask = planner.tensor("mask");
  const std::optional<uint32_t> to = planner.dynamic_result(0);
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
  const auto spread = [&](const OpTensor& from, OpTensor* there) {
    if (from.sizes == there->sizes && from.is_packed()) {
      there->location = from.location;
    } else {
      there->location = planner.scratch(there->nbytes());
      planner.copy(from, *there);
    }
  };
  spread(*self, &whole);
  spread(*mask, &set);
  return select(planner, planner.graph(), *to, set, set.location, &whole, whole.location);
}

Status select_plans::masked_scatter(OpPlanner& planner) {
  const std::optional<OpTensor> self = planner.tensor("self"), mask = planner.tensor("mask"),
                                source = planner.tensor("source"), to = planner.result(0);
  if (!self || !mask || !source || !to || source->dtype != to->dtype) return unsupported("of two dtypes");
  const int64_t count = to->count(), chunks = (count + kSelectChunk - 1) / kSelectChunk;
  if (count == 0) return {};
  OpTensor made = *to, set = *to;  // Expanded to the result's sizes.
  made.strides = set.strides = packed_strides(to->sizes);
  set.dtype = mask->dtype;
  made.location = planner.scratch(made.nbytes());
  set.location = planner.scratch(set.nbytes());
  planner.copy(*self, made);
  planner.copy(*mask, set);
  const Location from = planner.packed(*source), counts = sum_set(planner, set.location, count, set.dtype);
  planner.add_operand(-1);
  planner
      .launch(KernelFile::kSelect, "select_scatter",
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
  planner.copy(made, *to);
  return {};
}

// The gradients that the mask selected, followed by zeros.
Status select_plans::masked_scatter_backward(OpPlanner& planner) {
  const std::optional<OpTensor> grad = planner.tensor("grad_output"), mask = planner.tensor("mask"),
                                to = planner.result(0);
  if (!grad || !mask || !to || grad->dtype != to->dtype) return unsupported("of two dtypes");
  const Location out = planner.output(*to);
  planner.zero(out, to->nbytes());
  const int64_t count = grad->count(), chunks = (count + kSelectChunk - 1) / kSelectChunk;
  if (count == 0 || to->count() == 0) return {};
  OpTensor set = *grad;  // Expanded to the gradient's sizes.
  set.strides = packed_strides(set.sizes);
  set.dtype = mask->dtype;
  set.location = planner.scratch(set.nbytes());
  planner.copy(*mask, set);
  const Location from = planner.packed(*grad), counts = sum_set(planner, set.location, count, set.dtype);
  planner
      .launch(KernelFile::kSelect, "select_positions",
              SelectPositionsArguments{
                  .count = count, .dtype = static_cast<i64>(set.dtype), .item = ir::item_size(to->dtype)},
              chunks)
      .at(&SelectPositionsArguments::in, set.location)
      .at(&SelectPositionsArguments::counts, counts)
      .at(&SelectPositionsArguments::values, out)
      .at(&SelectPositionsArguments::from, from);
  return {};
}

Status select_plans::unique_sorted(OpPlanner& planner) { return unique(planner, true); }
Status select_plans::unique_runs(OpPlanner& planner) { return unique(planner, false); }

Status plan_index_by_mask(OpPlanner& planner) { return index_by_mask(planner); }

}  // namespace torch_remote::worker::cuda
