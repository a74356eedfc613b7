#include "worker/targets/cuda/ops/op_search.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <limits>
#include <span>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "codegen/lower/result_type.h"
#include "worker/targets/cuda/kernels/arguments.h"
#include "worker/targets/cuda/kernels/search_arguments.h"
#include "worker/targets/cuda/ops/op_plans_generated.h"
#include "worker/targets/cuda/ops/op_reduce.h"
#include "worker/targets/cuda/ops/op_sort.h"

// Searches in sorted rows; bins, medians and modes, which sort rows first; weighted draws. The order of sums is fixed,
// so results are reproducible.
namespace torch_remote::worker::cuda {
namespace {

using ir::DType;

bool is_float_number(const ir::Arg& arg) {
  return arg.tag == ir::ArgTag::kFloat ||
         (arg.tag == ir::ArgTag::kScalarTensor && ir::is_float(static_cast<DType>(arg.b & 0xFF)));
}

// searchsorted(sorted_sequence, self), bucketize(self, boundaries)
Status search(OpNode& node, PlanBuilder& plan, std::string_view bounds_name) {
  const auto bounds = node.tensor(bounds_name), self = node.tensor("self"), to = node.result(0);
  const ir::Arg* const given = node.argument("self");
  if (!bounds || given == nullptr || !to || bounds->sizes.empty()) return unsupported("without bounds");
  DType dtype = bounds->dtype;
  if (self && self->dtype != dtype) {
    if (self->sizes.empty()) return unsupported("of a number of another dtype");
    dtype = codegen::promoted(dtype, self->dtype);
  } else if (!self && is_float_number(*given) && !ir::is_float(dtype)) {
    dtype = DType::kFloat32;
  }
  const auto sorter = node.tensor("sorter");
  const bool has_rows = bounds->sizes.size() > 1;
  const auto leads = [](const OpTensor& tensor) { return std::span(tensor.sizes).first(tensor.sizes.size() - 1); };
  const bool fits =
      has_count(self, to->count()) && (self || to->count() == 1) && !ir::is_float(to->dtype) &&
      (!has_rows || (to->sizes.size() == bounds->sizes.size() && std::ranges::equal(leads(*to), leads(*bounds)))) &&
      is_of(sorter, DType::kInt64, bounds->count());
  if (!fits) return unsupported("of sizes that do not match");
  SearchArguments arguments{.count = to->count(),
                            .length = bounds->sizes.back(),
                            .dtype = static_cast<i64>(dtype),
                            .out_dtype = static_cast<i64>(to->dtype),
                            .right = node.flag("right") ? 1 : 0};
  if (has_rows) arguments.row = to->sizes.back();
  if (const ir::Arg* const side = node.argument("side"); side != nullptr && side->text == "right") {
    arguments.right = 1;
  }
  if (!self) {
    arguments.number = node.number("self");
    if (!is_float_number(*given)) arguments.int_number = node.integer("self");
  }
  const Location rows = plan.packed(*bounds, dtype), in = self ? plan.packed(*self, dtype) : Location();
  const Location order = sorter ? plan.packed(*sorter) : Location();
  if (sorter) plan.add_operand(-1, "torch.searchsorted(): sorter index out of range");
  plan.launch(KernelFile::kSearch, "search_sorted", arguments, blocks_for(arguments.count))
      .at(&SearchArguments::bounds, rows)
      .at(&SearchArguments::sorter, order)
      .at(&SearchArguments::in, in)
      .at(&SearchArguments::out, plan.output(*to))
      .failure([](const SearchArguments& words) { return &words.failure; }, sorter.has_value());
  return {};
}
// What search_histogram reports: bounds as the bits of doubles.
std::string describe_range(int64_t from, int64_t to) {
  std::ostringstream text;
  text << "torch.histc: range of [" << std::bit_cast<double>(from) << ", " << std::bit_cast<double>(to)
       << "] is not finite";
  return text.str();
}

// What multinomial_check reports: one of BadWeights.
std::string describe_weights(int64_t weights, int64_t) {
  constexpr const char* kWords[] = {
      "probability tensor contains either `inf`, `nan` or element < 0",
      "invalid multinomial distribution (encountering probability entry < 0)",
      "invalid multinomial distribution (encountering probability entry = infinity or NaN)",
      "invalid multinomial distribution (sum of probabilities <= 0)",
  };
  return kWords[std::clamp<int64_t>(weights, 0, std::size(kWords) - 1)];
}

// As the CPU converts NaN: true; the lowest number of 32 or 64 bits; 0 for fewer bits.
uint64_t bits_of_nan(DType dtype) {
  if (ir::is_float(dtype)) return float_bits(std::numeric_limits<double>::quiet_NaN(), dtype);
  if (dtype == DType::kBool) return 1;
  const int64_t bits = 8 * ir::item_size(dtype);
  return bits < 32 ? 0 : uint64_t{1} << (bits - 1);
}

}  // namespace

Status search_plans::search_sorted(OpNode& node, PlanBuilder& plan) { return search(node, plan, "sorted_sequence"); }
Status search_plans::bucketize(OpNode& node, PlanBuilder& plan) { return search(node, plan, "boundaries"); }

Status search_plans::count_bins(OpNode& node, PlanBuilder& plan) {
  const auto self = node.tensor("self");
  const auto weights = node.tensor("weights");
  const auto to = node.dynamic_result(0);
  if (!self || !to || ir::is_float(self->dtype)) return unsupported("of a known size");
  const int64_t count = self->count(), least = node.integer("minlength");
  if (!has_count(weights, count)) return unsupported("with other weights");
  const DType dtype = !weights || count == 0              ? DType::kInt64
                      : weights->dtype == DType::kFloat32 ? DType::kFloat32
                                                          : DType::kFloat64;
  Sorted sorted;
  Location values;
  const Location most = plan.scratch(8);
  plan.built().count = most;
  if (count == 0) {
    plan.zero(most, 8);
  } else {
    const Location in = plan.packed(*self);
    if (weights) values = plan.packed(*weights, dtype);
    if (Status status = sort_tensor(plan, *self, in, {1, count, 1}, false, &sorted); !status.ok()) return status;
    plan.launch(KernelFile::kSearch, "search_count_bound", CountBoundArguments{.count = count}, 1, 32)
        .at(&CountBoundArguments::keys, sorted.keys)
        .at(&CountBoundArguments::out, most);
  }
  const Location out{node.graph().views[*to].buffer, 0};
  plan.built().plan_rest = [=, view = *to](int64_t found, OpPlan* rest, std::vector<DynamicResult>* results) -> Status {
    if (found < 0) {
      return {ErrorCode::kOpFailed, "bincount only supports 1-d non-negative integral inputs.", "RuntimeError"};
    }
    const int64_t bins = std::max(found, least);
    results->push_back({view, dtype, {bins}});
    if (count == 0 && bins != 0) {
      rest->steps.emplace_back(OpFill{out, static_cast<uint64_t>(bins) * ir::item_size(dtype), 0});
      return {};
    }
    if (bins == 0) return {};
    LaunchBuilder(&rest->steps, KernelFile::kSearch, "search_count",
                  CountArguments{.count = count, .bins = bins, .dtype = static_cast<i64>(dtype)}, blocks_for(bins))
        .at(&CountArguments::keys, sorted.keys)
        .at(&CountArguments::positions, sorted.positions)
        .at(&CountArguments::weights, values)
        .at(&CountArguments::out, out);
    return {};
  };
  return {};
}

Status search_plans::histogram(OpNode& node, PlanBuilder& plan) {
  const auto self = node.tensor("self"), to = node.result(0);
  if (!self || !to || self->dtype == DType::kBool || to->dtype != self->dtype) return unsupported("of these dtypes");
  if (to->count() == 0) return unsupported("without bins");
  const bool floats = ir::is_float(self->dtype);
  const DType dtype = self->dtype;
  HistogramArguments arguments{.count = self->count(),
                               .bins = to->count(),
                               .dtype = static_cast<i64>(dtype),
                               .from = node.number("min", 0),
                               .to = node.number("max", 0),
                               .int_from = node.integer("min", 0),
                               .int_to = node.integer("max", 0)};
  const Location in = plan.packed(*self), counts = plan.scratch(8 * static_cast<uint64_t>(arguments.bins));
  plan.zero(counts, 8 * static_cast<uint64_t>(arguments.bins));
  OpTensor least, most;
  const bool of_all = floats ? arguments.from == arguments.to : arguments.int_from == arguments.int_to;
  if (of_all && arguments.count != 0) {
    const OpTensor all{.location = in, .dtype = dtype, .sizes = {arguments.count}, .strides = {1}};
    for (OpTensor* const one : {&least, &most}) *one = plan.scratch_tensor(dtype, {});
    for (const auto& [how, to] : {std::pair(ReduceAll::kMin, &least), std::pair(ReduceAll::kMax, &most)}) {
      if (Status status = reduce_all(plan, how, all, *to); !status.ok()) return status;
    }
  }
  if (floats) plan.add_described_operand(describe_range);
  plan.launch(KernelFile::kSearch, floats ? "search_histogram" : "search_histogram_int", arguments,
              blocks_for(arguments.count))
      .at(&HistogramArguments::in, in)
      .at(&HistogramArguments::counts, counts)
      .at(&HistogramArguments::least, least.location)
      .at(&HistogramArguments::most, most.location)
      .failure([](const HistogramArguments& words) { return &words.failure; }, floats);
  if (!floats) {
    plan.copy({.location = counts, .dtype = DType::kInt64, .sizes = {arguments.bins}, .strides = {1}}, *to);
    return {};
  }
  plan.launch(KernelFile::kSearch, "search_histogram_out", arguments, blocks_for(arguments.bins))
      .at(&HistogramArguments::counts, counts)
      .at(&HistogramArguments::out, plan.output(*to));
  return {};
}

// Along a dim, or over all elements.
Status search_plans::row_statistic(OpNode& node, PlanBuilder& plan, RowStatistic what) {
  const auto self = node.tensor("self"), values = node.result(0), indices = node.result(1);
  if (!self || (!values && !indices)) return unsupported("without a result");
  const bool of_all = !node.has("dim") && what != RowStatistic::kMode;
  const OuterLengthInner dims =
      of_all ? OuterLengthInner{1, self->count(), 1} : split(self->sizes, node.integer("dim", -1));
  const int64_t rows = dims.outer * dims.inner;
  if (!is_of(values, self->dtype, rows) || !is_of(indices, DType::kInt64, rows))
    return unsupported("into another size");
  if (rows == 0) return {};
  if (dims.length == 0) {
    if (!values || what == RowStatistic::kMode) return unsupported("of nothing");
    plan.fill(plan.output(*values), rows, values->dtype, bits_of_nan(values->dtype));
    return {};
  }
  const Location in = plan.packed(*self);
  Sorted sorted;
  if (Status status = sort_tensor(plan, *self, in, dims, false, &sorted); !status.ok()) return status;
  const RowStatisticArguments arguments{.rows = rows,
                                        .length = dims.length,
                                        .inner = dims.inner,
                                        .item = ir::item_size(self->dtype),
                                        .statistic = what,
                                        .floats = ir::is_float(self->dtype) ? 1 : 0};
  plan.launch(KernelFile::kSearch, "search_row_statistic", arguments, blocks_for(rows))
      .at(&RowStatisticArguments::in, in)
      .at(&RowStatisticArguments::keys, sorted.keys)
      .at(&RowStatisticArguments::positions, sorted.positions)
      .at(&RowStatisticArguments::values, values ? plan.output(*values) : Location())
      .at(&RowStatisticArguments::indices, indices ? plan.output(*indices) : Location());
  return {};
}

Status search_plans::multinomial(OpNode& node, PlanBuilder& plan) {
  const auto self = node.tensor("self"), to = node.result(0);
  const ir::Arg* const generator = node.argument("generator");
  if (!self || !to || self->sizes.empty() || generator == nullptr || generator->tag != ir::ArgTag::kGenerator) {
    return unsupported("without a generator");
  }
  const int64_t length = self->sizes.back(), samples = node.integer("num_samples");
  const int64_t rows = self->sizes.size() == 1 ? 1 : self->sizes[0];
  const bool replaces = node.flag("replacement");
  const bool fits = self->sizes.size() <= 2 && ir::is_float(self->dtype) && samples >= 0 &&
                    is_of(to, DType::kInt64, count_of(std::vector<int64_t>{rows, samples})) &&
                    (replaces || samples <= std::max<int64_t>(length, 1));
  if (!fits) return unsupported("of sizes that do not match");
  if (rows == 0) return {};
  if (length == 0) {
    return {ErrorCode::kOpFailed, "invalid multinomial distribution (sum of probabilities <= 0)", "RuntimeError"};
  }
  const Location in = plan.packed(*self);
  MultinomialArguments arguments{.rows = rows,
                                 .length = length,
                                 .samples = samples,
                                 .dtype = static_cast<i64>(self->dtype),
                                 .is_strict = replaces && samples != 1 ? 1 : 0};
  plan.add_described_operand(describe_weights);
  plan.launch(KernelFile::kRandom, "multinomial_check", arguments, std::min<int64_t>(rows, 1 << 16))
      .at(&MultinomialArguments::in, in)
      .failure([](const MultinomialArguments& words) { return &words.failure; });
  if (replaces || samples == 1) {
    const Location sums = plan.scratch(8 * static_cast<uint64_t>(rows * length)), out = plan.output(*to);
    plan.launch(KernelFile::kScan, "scan_sum_float_rows",
                ScanArguments{.outer = rows,
                              .length = length,
                              .in_dtype = arguments.dtype,
                              .out_dtype = static_cast<i64>(DType::kFloat64)},
                std::min<int64_t>(rows, 1 << 16))
        .at(&ScanArguments::in, in)
        .at(&ScanArguments::out, sums);
    plan.launch(KernelFile::kRandom, "multinomial_draw", arguments, blocks_for(rows * samples))
        .at(&MultinomialArguments::sums, sums)
        .at(&MultinomialArguments::out, out)
        .parameters(&MultinomialArguments::numbers, {generator->a, generator->a + 1});
    return {};
  }
  const OpTensor keys = plan.scratch_tensor(DType::kFloat64, {rows, length});
  plan.launch(KernelFile::kRandom, "multinomial_keys", arguments, blocks_for(rows * length))
      .at(&MultinomialArguments::in, in)
      .at(&MultinomialArguments::out, keys.location)
      .parameters(&MultinomialArguments::numbers, {generator->a, generator->a + 1});
  Sorted sorted;
  if (Status status = sort_tensor(plan, keys, keys.location, {rows, length, 1}, true, &sorted); !status.ok()) {
    return status;
  }
  plan.launch(KernelFile::kSort, "sort_take",
              SortTakeArguments{.outer = rows, .length = length, .count = samples, .item = 8},
              blocks_for(rows * samples))
      .at(&SortTakeArguments::in, keys.location)
      .at(&SortTakeArguments::positions, sorted.positions)
      .at(&SortTakeArguments::indices, plan.output(*to));
  return {};
}

Status search_members(PlanBuilder& plan, Location elements, const OpTensor& to, const OpTensor& members, bool inverts) {
  const int64_t count = to.count(), length = members.count();
  if (to.dtype != DType::kBool) return unsupported("into another dtype");
  const Location keys = plan.scratch(8 * static_cast<uint64_t>(count));
  plan.launch(KernelFile::kSort, "sort_keys",
              SortKeysArguments{.length = count, .dtype = static_cast<i64>(members.dtype)}, blocks_for(count))
      .at(&SortKeysArguments::in, elements)
      .at(&SortKeysArguments::keys, keys);
  Sorted sorted;
  if (length != 0) {
    Status status = sort_tensor(plan, members, members.location, {1, length, 1}, false, &sorted);
    if (!status.ok()) return status;
  }
  plan.launch(KernelFile::kSearch, "search_members",
              MemberArguments{.count = count,
                              .length = length,
                              .inverts = inverts ? 1 : 0,
                              .floats = ir::is_float(members.dtype) ? 1 : 0},
              blocks_for(count))
      .at(&MemberArguments::keys, keys)
      .at(&MemberArguments::sorted, sorted.keys)
      .at(&MemberArguments::out, plan.output(to));
  return {};
}

}  // namespace torch_remote::worker::cuda
