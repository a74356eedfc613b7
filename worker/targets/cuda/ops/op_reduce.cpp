#include <algorithm>
#include <bit>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "worker/targets/cuda/kernels/arguments.h"
#include "worker/targets/cuda/kernels/reduce_arguments.h"
#include "worker/targets/cuda/ops/op_plan.h"

// Reductions over any dims, softmax along any dim, layer norm. Reduced dims are moved to the end, by a copy if needed.
// Compiled kernels execute most of these without a copy; this is for the rest.
namespace torch_remote::worker::cuda {
namespace {

using ir::DType;

constexpr int64_t kThreads = 256;
// Rows of at least kLong elements are split if there are few rows.
constexpr int64_t kLong = 1 << 16, kPieces = 256;

// Threads per row, and per block.
int64_t group_for(int64_t length) {
  const auto threads = static_cast<uint64_t>(std::clamp<int64_t>(length / 2, 1, kThreads));
  return static_cast<int64_t>(std::bit_floor(threads));
}
unsigned block_for(int64_t rows, int64_t group) {
  const auto threads = static_cast<uint64_t>(std::clamp<int64_t>(rows * group, 32, kThreads));
  return static_cast<unsigned>(std::bit_ceil(threads));
}
int64_t grid_for(int64_t rows, int64_t group) {
  const int64_t each = block_for(rows, group) / group;
  return std::min((rows + each - 1) / each, kMaxBlocks);
}

size_t dim_of(int64_t dim, size_t rank) {
  return static_cast<size_t>(dim < 0 ? dim + static_cast<int64_t>(rank) : dim);
}

// Marks the dims of `self` that are reduced.
std::vector<bool> reduced_dims(OpPlanner& planner, const OpTensor& self, const OpTensor* to) {
  const size_t rank = self.sizes.size();
  const ir::Arg* const given = planner.argument("dim");
  std::vector<bool> dims(rank, given == nullptr);
  if (given == nullptr || rank == 0) return dims;
  if (given->tag != ir::ArgTag::kList) {
    dims[dim_of(planner.integer("dim"), rank)] = true;
    return dims;
  }
  for (const int64_t dim : planner.integers("dim")) dims[dim_of(dim, rank)] = true;
  // An empty list means all dims, except for ops that then keep all dims.
  const bool keeps = to != nullptr && to->sizes == self.sizes;
  if (given->items.empty() && !keeps) dims.assign(rank, true);
  return dims;
}

// Moves the marked dims to the end.
OpTensor with_dims_last(const OpTensor& tensor, const std::vector<bool>& last) {
  OpTensor made = tensor;
  made.sizes.clear();
  made.strides.clear();
  for (const bool behind : {false, true}) {
    for (size_t d = 0; d < tensor.sizes.size(); ++d) {
      if (last[d] != behind) continue;
      made.sizes.push_back(tensor.sizes[d]);
      made.strides.push_back(tensor.strides[d]);
    }
  }
  return made;
}

struct Rows {
  int64_t rows = 1, length = 1;
};
Rows rows_of(const OpTensor& tensor, const std::vector<bool>& last) {
  Rows made;
  for (size_t d = 0; d < tensor.sizes.size(); ++d) (last[d] ? made.length : made.rows) *= tensor.sizes[d];
  return made;
}

bool is_extreme(Reduce reduce) { return reduce == Reduce::kMax || reduce == Reduce::kMin; }

struct Reduction {
  Reduce reduce = Reduce::kSum;
  double p = 0;
  DType out_dtype = DType::kFloat32;
  bool in_floats = true;  // Computed in f64; otherwise in i64.
};

// Reduces contiguous rows to contiguous results. Each location except `in` may be kNoLocation.
void launch_rows(OpPlanner& planner, const Reduction& how, Location in, DType dtype, Rows rows, Location out,
                 Location positions, Location mean) {
  const bool is_norm_of_extreme = how.reduce == Reduce::kNorm && std::isinf(how.p);
  const char* const kernel = is_extreme(how.reduce) ? (how.in_floats ? "reduce_extremes_float" : "reduce_extremes_int")
                                                    : (how.in_floats ? "reduce_sums_float" : "reduce_sums_int");
  ReduceArguments arguments{.rows = rows.rows,
                            .length = rows.length,
                            .dtype = static_cast<i64>(dtype),
                            .out_dtype = static_cast<i64>(how.out_dtype),
                            .count = rows.length,
                            .reduce = how.reduce,
                            .p = how.p};
  const auto launch = [&](Location from, Location from_places, Location to, Location to_places, Location to_mean) {
    const int64_t made = arguments.rows * arguments.pieces;
    arguments.group = group_for(arguments.pieces == 1 ? arguments.length : arguments.piece);
    planner
        .launch(KernelFile::kReduce, kernel, arguments, grid_for(made, arguments.group),
                block_for(made, arguments.group))
        .at(&ReduceArguments::in, from)
        .at(&ReduceArguments::in_positions, from_places)
        .at(&ReduceArguments::out, to)
        .at(&ReduceArguments::positions, to_places)
        .at(&ReduceArguments::mean, to_mean);
  };
  const bool is_variance = how.reduce == Reduce::kVariance || how.reduce == Reduce::kStd;
  const bool may_be_cut = !is_variance && how.reduce != Reduce::kLogSumExp && !is_norm_of_extreme;
  if (!may_be_cut || rows.length < kLong || rows.rows >= kPieces) return launch(in, {}, out, positions, mean);
  const int64_t piece = std::max<int64_t>(kLong / 16, (rows.length + kPieces - 1) / kPieces);
  const int64_t pieces = (rows.length + piece - 1) / piece;
  const auto bytes = 8 * static_cast<uint64_t>(rows.rows * pieces);
  const DType wide = how.in_floats ? DType::kFloat64 : DType::kInt64;
  const Location some = planner.scratch(bytes);
  const Location some_places = positions.buffer != kNoLocation ? planner.scratch(bytes) : Location();
  arguments.stage = Stage::kPieces;
  arguments.pieces = pieces;
  arguments.piece = piece;
  arguments.out_dtype = static_cast<i64>(wide);
  launch(in, {}, some, some_places, {});
  arguments.stage = Stage::kJoin;
  arguments.pieces = 1;
  arguments.length = pieces;
  arguments.dtype = static_cast<i64>(wide);
  arguments.out_dtype = static_cast<i64>(how.out_dtype);
  launch(some, some_places, out, positions, {});
}

// Reduces `self` over `dim` into the results that exist.
Status reduce(OpPlanner& planner, Reduce what, double p, const OpTensor& self, const OpTensor* to,
              const OpTensor* positions, const OpTensor* mean) {
  const OpTensor* const any = to != nullptr ? to : positions;
  if (any == nullptr) return unsupported("without a result");
  const std::vector<bool> dims = reduced_dims(planner, self, any);
  const OpTensor moved = with_dims_last(self, dims);
  Reduction how{.reduce = what, .p = p};
  DType dtype = self.dtype;
  if (to != nullptr) how.out_dtype = to->dtype;
  if (is_extreme(what)) {
    how.in_floats = ir::is_float(dtype);
    if (to != nullptr && to->dtype != dtype) return unsupported("into another dtype");
  } else {
    how.in_floats = ir::is_float(how.out_dtype);
    const bool counts = what == Reduce::kAny || what == Reduce::kAll || what == Reduce::kNonzero;
    if (counts && ir::is_complex(dtype)) dtype = DType::kBool;
    if (counts) how.in_floats = ir::is_float(dtype);
    if (!how.in_floats && !counts && ir::is_float(dtype)) dtype = DType::kInt64;  // Elements become integers first.
  }
  const Location in = planner.packed(moved, dtype);
  const Location out = to != nullptr ? planner.output(*to) : Location();
  const Location out_positions = positions != nullptr ? planner.output(*positions) : Location();
  const Location out_mean = mean != nullptr ? planner.output(*mean) : Location();
  launch_rows(planner, how, in, dtype, rows_of(self, dims), out, out_positions, out_mean);
  return {};
}

const OpTensor* given(const std::optional<OpTensor>& tensor) { return tensor ? &*tensor : nullptr; }

Status reduce(OpPlanner& planner, Reduce what, double p = 0) {
  const auto self = planner.tensor("self"), to = planner.result(0);
  if (!self || !to) return unsupported("without a result");
  return reduce(planner, what, p, *self, &*to, nullptr, nullptr);
}

// A sum with a bool result is "any", a product "all".
bool makes_truth(OpPlanner& planner) {
  const auto to = planner.result(0);
  return to && to->dtype == DType::kBool;
}
Status sum(OpPlanner& planner) { return reduce(planner, makes_truth(planner) ? Reduce::kAny : Reduce::kSum); }
Status reduce_product(OpPlanner& planner) {
  return reduce(planner, makes_truth(planner) ? Reduce::kAll : Reduce::kProduct);
}
Status sum_of_numbers(OpPlanner& planner) {
  return reduce(planner, makes_truth(planner) ? Reduce::kAny : Reduce::kNansum);
}
Status mean(OpPlanner& planner) { return reduce(planner, Reduce::kMean); }
Status any(OpPlanner& planner) { return reduce(planner, Reduce::kAny); }
Status all(OpPlanner& planner) { return reduce(planner, Reduce::kAll); }
Status nonzero(OpPlanner& planner) { return reduce(planner, Reduce::kNonzero); }
Status log_sum_exp(OpPlanner& planner) { return reduce(planner, Reduce::kLogSumExp); }

Status extreme(OpPlanner& planner, Reduce what) {
  if (planner.has("other")) return unsupported("of two tensors");
  const auto self = planner.tensor("self"), to = planner.result(0), positions = planner.result(1);
  if (!self || !to) return unsupported("without a result");
  return reduce(planner, what, 0, *self, &*to, given(positions), nullptr);
}
Status largest(OpPlanner& planner) { return extreme(planner, Reduce::kMax); }
Status smallest(OpPlanner& planner) { return extreme(planner, Reduce::kMin); }

Status arg_extreme(OpPlanner& planner, Reduce what) {
  const auto self = planner.tensor("self"), to = planner.result(0);
  if (!self || !to) return unsupported("without a result");
  return reduce(planner, what, 0, *self, nullptr, &*to, nullptr);
}
Status argmax(OpPlanner& planner) { return arg_extreme(planner, Reduce::kMax); }
Status argmin(OpPlanner& planner) { return arg_extreme(planner, Reduce::kMin); }

Status both_extremes(OpPlanner& planner) {
  const auto self = planner.tensor("self"), least = planner.result(0), most = planner.result(1);
  if (!self || !least || !most) return unsupported("without results");
  if (Status status = reduce(planner, Reduce::kMin, 0, *self, &*least, nullptr, nullptr); !status.ok()) return status;
  return reduce(planner, Reduce::kMax, 0, *self, &*most, nullptr, nullptr);
}

// The number that is subtracted from the number of elements.
double correction_of(OpPlanner& planner) {
  if (planner.has("unbiased")) return planner.flag("unbiased") ? 1 : 0;
  return planner.number("correction", 1);
}

Status variance(OpPlanner& planner, Reduce what) {
  const auto self = planner.tensor("self"), to = planner.result(0), mean = planner.result(1);
  if (!self || !to || !ir::is_float(self->dtype)) return unsupported("of integers");
  return reduce(planner, what, correction_of(planner), *self, &*to, nullptr, given(mean));
}
Status variance(OpPlanner& planner) { return variance(planner, Reduce::kVariance); }
Status deviation(OpPlanner& planner) { return variance(planner, Reduce::kStd); }

// The order of a norm.
double order_of(OpPlanner& planner) { return planner.has("ord") ? planner.number("ord") : planner.number("p", 2); }

Status norm(OpPlanner& planner) {
  const auto self = planner.tensor("self"), to = planner.result(0);
  if (!self || !to) return unsupported("without a result");
  const OpTensor sizes = ir::is_complex(self->dtype) ? absolute_values(planner, *self) : *self;
  return reduce(planner, Reduce::kNorm, order_of(planner), sizes, &*to, nullptr, nullptr);
}

Status norms(OpPlanner& planner) {
  const ir::Arg* const list = planner.argument("self");
  if (list == nullptr || list->tag != ir::ArgTag::kList) return unsupported("without a list");
  const double p = order_of(planner);
  for (size_t i = 0; i < list->items.size(); ++i) {
    if (list->items[i].tag != ir::ArgTag::kView) return unsupported("of numbers");
    OpTensor self = planner.tensor_of(list->items[i].a);
    const std::optional<OpTensor> to = planner.listed_result(0, i);
    if (!to) continue;
    if (ir::is_complex(self.dtype)) self = absolute_values(planner, self);
    const Reduction how{.reduce = Reduce::kNorm, .p = p, .out_dtype = to->dtype};
    launch_rows(planner, how, planner.packed(self), self.dtype, {1, self.count()}, planner.output(*to), {}, {});
  }
  return {};
}

// The sum of a matrix's diagonal.
Status trace(OpPlanner& planner) {
  const auto self = planner.tensor("self"), to = planner.result(0);
  if (!self || !to || self->sizes.size() != 2) return unsupported("of no matrix");
  OpTensor diagonal = *self;
  diagonal.sizes = {std::min(self->sizes[0], self->sizes[1])};
  diagonal.strides = {self->strides[0] + self->strides[1]};
  if (ir::is_complex(to->dtype)) {
    const OpTensor parts = with_dims_last(parts_of(diagonal), {true, false}), made = parts_of(*to);
    launch_rows(planner, {.out_dtype = made.dtype}, planner.packed(parts), parts.dtype, {2, diagonal.count()},
                planner.output(made), {}, {});
    return {};
  }
  if (ir::is_float(self->dtype) != ir::is_float(to->dtype)) return unsupported("of two dtypes");
  diagonal.location = planner.packed(diagonal);
  diagonal.strides = {1};
  reduce_all(planner, ReduceAll::kSum, diagonal, *to);
  return {};
}

// Complex numbers: the two parts are one more dim that is kept, after the other kept dims.
Status reduce_parts(OpPlanner& planner, Reduce what) {
  const auto self = planner.tensor("self"), to = planner.result(0);
  if (!self || !to || !ir::is_complex(to->dtype) || to->dtype == DType::kComplex32)
    return unsupported("of these dtypes");
  std::vector<bool> dims = reduced_dims(planner, *self, &*to);
  OpTensor from = *self;
  if (self->dtype != to->dtype) {
    from.location = planner.packed(*self, to->dtype);
    from.dtype = to->dtype;
    from.strides = packed_strides(from.sizes);
  }
  const OpTensor parts = parts_of(from), made = parts_of(*to);
  dims.push_back(false);
  const Reduction how{.reduce = what, .out_dtype = made.dtype};
  launch_rows(planner, how, planner.packed(with_dims_last(parts, dims)), parts.dtype, rows_of(parts, dims),
              planner.output(made), {}, {});
  return {};
}

// The variance of complex numbers is the sum of the variances of both parts.
Status variance_of_parts(OpPlanner& planner, Reduce what) {
  const auto self = planner.tensor("self"), to = planner.result(0), mean = planner.result(1);
  if (!self || !to || self->dtype == DType::kComplex32) return unsupported("of these dtypes");
  std::vector<bool> dims = reduced_dims(planner, *self, &*to);
  const OpTensor parts = parts_of(*self);
  dims.push_back(false);
  OpTensor of_mean;
  if (mean) of_mean = parts_of(*mean);
  const Rows rows = rows_of(parts, dims);
  const Location each = planner.scratch(static_cast<uint64_t>(rows.rows) * ir::item_size(parts.dtype));
  const Reduction how{.reduce = what, .p = correction_of(planner), .out_dtype = parts.dtype};
  launch_rows(planner, how, planner.packed(with_dims_last(parts, dims)), parts.dtype, rows, each, {},
              mean ? planner.output(of_mean) : Location());
  const bool is_root = what == Reduce::kStd;
  const Reduction both{.reduce = is_root ? Reduce::kNorm : Reduce::kSum, .p = 2, .out_dtype = to->dtype};
  launch_rows(planner, both, each, parts.dtype, {rows.rows / 2, 2}, planner.output(*to), {}, {});
  return {};
}

// -- Along one dim, with results of the operand's size ----------------------------------------------------------------

std::vector<bool> one_dim(OpPlanner& planner, const OpTensor& tensor) {
  std::vector<bool> dims(tensor.sizes.size(), false);
  if (!dims.empty()) dims[dim_of(planner.integer("dim"), dims.size())] = true;
  return dims;
}

Status softmax(OpPlanner& planner, bool is_log, bool is_safe) {
  const auto self = planner.tensor("self"), to = planner.result(0);
  if (!self || !to || !ir::is_float(to->dtype)) return unsupported("without a result");
  OpTensor from = *self;
  if (!ir::is_float(self->dtype)) {
    from.location = planner.packed(*self, to->dtype);
    from.dtype = to->dtype;
    from.strides = packed_strides(from.sizes);
  }
  const std::vector<bool> dims = one_dim(planner, from);
  const auto [rows, length] = rows_of(from, dims);
  const SoftmaxArguments arguments{.rows = rows,
                                   .length = length,
                                   .dtype = static_cast<i64>(from.dtype),
                                   .out_dtype = static_cast<i64>(to->dtype),
                                   .group = group_for(length),
                                   .is_log = is_log ? 1 : 0,
                                   .is_safe = is_safe ? 1 : 0};
  const Location in = planner.packed(with_dims_last(from, dims)), out = planner.output(with_dims_last(*to, dims));
  planner
      .launch(KernelFile::kReduce, "reduce_softmax", arguments, grid_for(rows, arguments.group),
              block_for(rows, arguments.group))
      .at(&SoftmaxArguments::in, in)
      .at(&SoftmaxArguments::out, out);
  return {};
}
Status softmax(OpPlanner& planner) { return softmax(planner, false, false); }
Status log_softmax(OpPlanner& planner) { return softmax(planner, true, false); }
Status safe_softmax(OpPlanner& planner) { return softmax(planner, false, true); }

Status softmax_backward(OpPlanner& planner, bool is_log) {
  const auto grad = planner.tensor("grad_output"), made = planner.tensor("output"), to = planner.result(0);
  if (!grad || !made || !to || grad->dtype != made->dtype || grad->sizes != made->sizes)
    return unsupported("of two dtypes");
  const std::vector<bool> dims = one_dim(planner, *made);
  const auto [rows, length] = rows_of(*made, dims);
  const SoftmaxArguments arguments{.rows = rows,
                                   .length = length,
                                   .dtype = static_cast<i64>(made->dtype),
                                   .out_dtype = static_cast<i64>(to->dtype),
                                   .group = group_for(length),
                                   .is_log = is_log ? 1 : 0};
  const Location in = planner.packed(with_dims_last(*made, dims)), from = planner.packed(with_dims_last(*grad, dims)),
                 out = planner.output(with_dims_last(*to, dims));
  planner
      .launch(KernelFile::kReduce, "reduce_softmax_backward", arguments, grid_for(rows, arguments.group),
              block_for(rows, arguments.group))
      .at(&SoftmaxArguments::in, in)
      .at(&SoftmaxArguments::grad, from)
      .at(&SoftmaxArguments::out, out);
  return {};
}
Status softmax_backward(OpPlanner& planner) { return softmax_backward(planner, false); }
Status log_softmax_backward(OpPlanner& planner) { return softmax_backward(planner, true); }

Status layer_norm(OpPlanner& planner) {
  const auto input = planner.tensor("input"), weight = planner.tensor("weight"), bias = planner.tensor("bias");
  const auto to = planner.result(0), mean = planner.result(1), scale = planner.result(2);
  const size_t dims = planner.integers("normalized_shape").size();
  if (!input || !to || !ir::is_float(input->dtype) || to->dtype != input->dtype || dims > input->sizes.size()) {
    return unsupported("without a result");
  }
  if (weight && bias && weight->dtype != bias->dtype) return unsupported("of two dtypes");
  if (mean && scale && mean->dtype != scale->dtype) return unsupported("of two dtypes");
  LayerNormArguments arguments{.rows = 1, .length = 1, .dtype = static_cast<i64>(input->dtype)};
  const size_t before = input->sizes.size() - dims;
  for (size_t d = 0; d < input->sizes.size(); ++d) (d < before ? arguments.rows : arguments.length) *= input->sizes[d];
  arguments.group = group_for(arguments.length);
  arguments.epsilon = planner.number("eps");
  if (const auto& of = weight ? weight : bias) arguments.weight_dtype = static_cast<i64>(of->dtype);
  if (const auto& of = mean ? mean : scale) arguments.mean_dtype = static_cast<i64>(of->dtype);
  const auto packed = [&](const std::optional<OpTensor>& from) { return from ? planner.packed(*from) : Location(); };
  const auto output = [&](const std::optional<OpTensor>& made) { return made ? planner.output(*made) : Location(); };
  const Location in = packed(input), weights = packed(weight), biases = packed(bias);
  const Location out = output(to), means = output(mean), scales = output(scale);
  planner
      .launch(KernelFile::kReduce, "reduce_layer_norm", arguments, grid_for(arguments.rows, arguments.group),
              block_for(arguments.rows, arguments.group))
      .at(&LayerNormArguments::in, in)
      .at(&LayerNormArguments::weight, weights)
      .at(&LayerNormArguments::bias, biases)
      .at(&LayerNormArguments::out, out)
      .at(&LayerNormArguments::mean, means)
      .at(&LayerNormArguments::scale, scales);
  return {};
}

// Reports an error with the given message if the number is 0.
Status assert_async(OpPlanner& planner) {
  const auto self = planner.tensor("self");
  if (!self) return unsupported("without operands");
  if (self->count() != 1) {
    return {ErrorCode::kOpFailed,
            self->count() == 0 ? "Boolean value of Tensor with no values is ambiguous"
                               : "Boolean value of Tensor with more than one value is ambiguous",
            "RuntimeError"};
  }
  const ir::Arg* words = planner.argument("assert_msg");
  planner.add_operand(-1, words != nullptr ? words->text : "Expected Tensor with single nonzero value, but got zero");
  const Location number = planner.scratch(8);
  count_nonzero(planner, planner.packed(*self), self->dtype, 1, number);
  planner.launch(KernelFile::kFill, "assert_nonzero", AssertArguments{}, 1, 1)
      .at(&AssertArguments::number, number)
      .failure([](const AssertArguments& given) { return &given.failure; });
  return {};
}

constexpr NamedPlan kReducePlans[] = {{"sum", sum},
                                      {"nansum", sum_of_numbers},
                                      {"mean", mean},
                                      {"prod", reduce_product},
                                      {"amax", largest},
                                      {"amin", smallest},
                                      {"max", largest},
                                      {"min", smallest},
                                      {"argmax", argmax},
                                      {"argmin", argmin},
                                      {"aminmax", both_extremes},
                                      {"_aminmax", both_extremes},
                                      {"any", any, true},
                                      {"all", all, true},
                                      {"_is_any_true", any},
                                      {"_is_all_true", all},
                                      {"count_nonzero", nonzero, true},
                                      {"_assert_async", assert_async, true},
                                      {"var", variance},
                                      {"std", deviation},
                                      {"var_mean", variance},
                                      {"std_mean", deviation},
                                      {"norm", norm, true},
                                      {"trace", trace, true},
                                      {"linalg_vector_norm", norm, true},
                                      {"_foreach_norm", norms, true},
                                      {"logsumexp", log_sum_exp},
                                      {"_softmax", softmax},
                                      {"_log_softmax", log_softmax},
                                      {"_safe_softmax", safe_softmax},
                                      {"_softmax_backward_data", softmax_backward},
                                      {"_log_softmax_backward_data", log_softmax_backward},
                                      {"native_layer_norm", layer_norm}};

}  // namespace

void count_nonzero(OpPlanner& planner, Location in, ir::DType dtype, int64_t count, Location out) {
  const Reduction how{.reduce = Reduce::kNonzero, .out_dtype = DType::kInt64, .in_floats = ir::is_float(dtype)};
  launch_rows(planner, how, in, dtype, {1, count}, out, {}, {});
}

Status sum_of_parts(OpPlanner& planner) { return reduce_parts(planner, Reduce::kSum); }
Status mean_of_parts(OpPlanner& planner) { return reduce_parts(planner, Reduce::kMean); }
Status variance_of_parts(OpPlanner& planner) { return variance_of_parts(planner, Reduce::kVariance); }
Status std_of_parts(OpPlanner& planner) { return variance_of_parts(planner, Reduce::kStd); }

void norm_over(OpPlanner& planner, const OpTensor& from, const std::vector<bool>& dims, double p, const OpTensor& to) {
  const OpTensor sizes = ir::is_complex(from.dtype) ? absolute_values(planner, from) : from;
  const Reduction how{.reduce = Reduce::kNorm, .p = p, .out_dtype = to.dtype};
  launch_rows(planner, how, planner.packed(with_dims_last(sizes, dims)), sizes.dtype, rows_of(sizes, dims), to.location,
              {}, {});
}

void reduce_all(OpPlanner& planner, ReduceAll how, const OpTensor& from, const OpTensor& to) {
  constexpr Reduce kHow[] = {Reduce::kSum, Reduce::kMean, Reduce::kMax, Reduce::kMin};
  const bool floats = ir::is_float(how < ReduceAll::kMax ? to.dtype : from.dtype);
  const Reduction reduction{.reduce = kHow[static_cast<size_t>(how)], .out_dtype = to.dtype, .in_floats = floats};
  launch_rows(planner, reduction, from.location, from.dtype, {1, from.count()}, planner.output(to), {}, {});
}

std::span<const NamedPlan> reduce_plans() { return kReducePlans; }

}  // namespace torch_remote::worker::cuda
