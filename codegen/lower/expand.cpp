#include "codegen/lower/expand.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "codegen/loop/scalar_ops.h"
#include "codegen/lower/indices.h"

// The formulas of ops that have no scalar tree (ir/fusion/fusion.h). Sums and products of f32 and half types are
// accumulated in f64.
namespace torch_remote::codegen {
namespace {

using ir::DType;
using ir::Expansion;
using ir::ScalarOp;

bool copy(NodeEmitter& node) {
  const ir::Arg& source = node.args.at(1);
  if (source.tag != ir::ArgTag::kView && source.tag != ir::ArgTag::kScalarTensor) return false;
  node.fill(ir::is_float(node.result_dtype(0)) ? node.operand(source) : node.stored_operand(source));
  return true;
}

bool fill(NodeEmitter& node) {
  node.fill(node.node.args.size() > 1 ? node.operand(node.args.at(1)) : node.e.constant(node.result_dtype(0), 0));
  return true;
}

// An element survives if its random word is below (1 - p) * 2^32, as when the op runs alone
// (worker/targets/aten/kernels/random.cpp).
bool dropout(NodeEmitter& node) {
  Emitter& e = node.e;
  const DType type = node.args.type("input");
  const double p = node.args.float_value("p");
  const ir::Arg* generator = node.args.find("generator");
  const V number = linear_index(node);
  if (!ir::is_float(type) || number == kNone || generator == nullptr || !(p >= 0 && p <= 1)) return false;
  const V word =
      e.random(node.scalar_of(DType::kInt64, generator->a), node.scalar_of(DType::kInt64, generator->a + 1), number);
  const V unsigned_word =
      e.op(ScalarOp::kBitAnd, e.convert(word, DType::kInt64), e.constant(DType::kInt64, 0xFFFFFFFF));
  const V keep = e.op(ScalarOp::kLt, unsigned_word, e.scalar_int(static_cast<int64_t>(std::ldexp(1 - p, 32))));
  const V scale = e.convert(e.scalar_float(p == 1 ? 0 : 1 / (1 - p)), type);
  node.result(0, e.mul(e.mul(node.operand("input", type), e.convert(keep, type)), scale));
  node.result(1, keep);
  return true;
}

bool softmax(NodeEmitter& node, bool log) {
  Emitter& e = node.e;
  const DType type = node.args.type("self");
  if (!ir::is_float(type)) return false;
  const V x = node.operand("self", type);
  const V shifted = e.sub(x, e.reduce(Reduction::kMax, x));
  const V exp = e.op(ScalarOp::kExp, shifted);
  const V sum = e.reduce(Reduction::kSum, exp);
  // One division per row is enough: the sum is at least 1, so its reciprocal is a normal number.
  node.result(0, log ? e.sub(shifted, e.op(ScalarOp::kLog, sum)) : e.mul(exp, e.div(e.constant(type, 1), sum)));
  return true;
}

// Returns e^output. If the kernel itself computes the log-softmax, as x - log(sum(e^x)), this is e^x / sum(e^x), and
// both values exist. It saves one exponential and has a smaller error.
V exp_of_log_softmax(Emitter& e, V output) {
  const auto is = [&](V value, ScalarOp op) {
    return value != kNone && e.value_at(value).kind == Kind::kScalarOp && e.value_at(value).op == op;
  };
  if (!is(output, ScalarOp::kSub) || !is(e.value_at(output).b, ScalarOp::kLog)) return e.op(ScalarOp::kExp, output);
  const V shifted = e.value_at(output).a, sum = e.value_at(e.value_at(output).b).a;
  const Value& total = e.value_at(sum);
  const bool sums = total.kind == Kind::kReduce && total.over == Over::kColumns && total.reduction == Reduction::kSum &&
                    is(total.a, ScalarOp::kExp) && e.value_at(total.a).a == shifted;
  if (!sums) return e.op(ScalarOp::kExp, output);
  const V exp = total.a;
  return e.mul(exp, e.div(e.constant(e.type(sum), 1), sum));
}

// The sum over columns, in `sum_type`.
V sum_columns(Emitter& e, V value) { return e.reduce(Reduction::kSum, e.convert(value, sum_type(e.type(value)))); }

bool softmax_backward(NodeEmitter& node, bool log) {
  Emitter& e = node.e;
  const DType type = node.args.type("output");
  if (!ir::is_float(type)) return false;
  const V grad = node.operand("grad_output", type), output = node.operand("output", type);
  if (log) {
    const V sum = e.convert(sum_columns(e, grad), type);
    node.result(0, e.sub(grad, e.mul(exp_of_log_softmax(e, output), sum)));
  } else {
    const V sum = e.reduce(Reduction::kSum, e.mul(grad, output));
    node.result(0, e.mul(e.sub(grad, sum), output));
  }
  return true;
}

// The moments of a row, in the type of its sums (`sum_type`). They take two passes; no square of an f32 overflows or
// vanishes in f64.
struct Moments {
  V count, part;    // count of the row's points; part = 1 / count
  V mean, squares;  // squares: the sum of (x - mean)^2
};

// 1 / (the number of points that the node reduces).
V part_of(NodeEmitter& node) { return node.e.scalar_float(1 / static_cast<double>(node.count_reduced())); }

// If squares are at least this large on average, those that vanish in f32 are negligible.
constexpr double kMinMeanSquare = 1e-36;

// Whether f32 sums of squares are as good as f64 sums: nothing overflowed, and what vanished is negligible.
V f32_sums_suffice(NodeEmitter& node, V squares) {
  Emitter& e = node.e;
  const V is_finite = e.op(ScalarOp::kLt, squares, e.constant(DType::kFloat64, std::numeric_limits<float>::max()));
  return e.op(ScalarOp::kLogicalAnd, is_finite,
              e.op(ScalarOp::kGt, squares, e.scalar_float(static_cast<double>(node.count_reduced()) * kMinMeanSquare)));
}

// The sum of the squares of x - mean, in f64, for rows whose `again` is true. Other rows skip this loop
// (codegen/cpu/plan.h, LoopPlan::condition), as they skip other sums of `where again, x, 0`.
V recomputed_squares(Emitter& e, V x, V mean, V again) {
  const V centered = e.sub(e.convert(x, DType::kFloat64), mean);
  return e.reduce(Reduction::kSum, e.where(again, e.mul(centered, centered), e.constant(DType::kFloat64, 0)));
}

// Used if the mean is a result. The mean is in f64. The squares of x minus the rounded mean are added in f32, then
// corrected for the rounding. If squares overflow or vanish, they are added again in f64.
Moments moments_with_exact_mean(NodeEmitter& node, V x) {
  Emitter& e = node.e;
  const V count = node.reduced_points(DType::kFloat64);
  const V mean = e.div(sum_columns(e, x), count);
  const V rounded = e.convert(mean, DType::kFloat32);
  const V difference = e.sub(x, rounded), rest = e.sub(mean, e.convert(rounded, DType::kFloat64));
  const V sum = e.wide_sum(e.mul(difference, difference));
  const V squares = e.sub(sum, e.mul(count, e.mul(rest, rest)));
  const V again = e.op(ScalarOp::kLogicalNot, f32_sums_suffice(node, squares));
  return {count, part_of(node), mean, e.where(again, recomputed_squares(e, x, mean, again), squares)};
}

// The exact mean and sum of squares in rows whose `again` is true; `given` in other rows.
Moments recomputed_moments(NodeEmitter& node, V x, V again, const Moments& given) {
  Emitter& e = node.e;
  const DType wide = DType::kFloat64;
  const V all = e.reduce(Reduction::kSum, e.where(again, e.convert(x, wide), e.constant(wide, 0)));
  const V mean = e.where(again, e.div(all, given.count), given.mean);
  return {given.count, given.part, mean, e.where(again, recomputed_squares(e, x, mean, again), given.squares)};
}

// Used if only the squares are a result: they are taken about a rough mean. The mean's own error is negligible if the
// mean is less than 2^8 standard deviations.
Moments squares_about_rough_mean(NodeEmitter& node, V x) {
  Emitter& e = node.e;
  const V count = node.reduced_points(DType::kFloat64), part = part_of(node);
  const V mean = e.mul(e.wide_sum(x), part);
  const V difference = e.sub(x, e.convert(mean, DType::kFloat32));
  const V squares = e.wide_sum(e.mul(difference, difference));
  const V offset = e.mul(e.mul(mean, mean), e.mul(count, e.constant(DType::kFloat64, std::ldexp(1, -16))));
  const V good = e.op(ScalarOp::kLogicalAnd, f32_sums_suffice(node, squares), e.op(ScalarOp::kLe, offset, squares));
  return recomputed_moments(node, x, e.op(ScalarOp::kLogicalNot, good), {count, part, mean, squares});
}

// Used if both are used but neither is a result. The squares are taken about a rough mean, whose error is then
// corrected. The correction fails if all numbers are equal, or if the mean is some 10^6 standard deviations.
Moments moments_about_rough_mean(NodeEmitter& node, V x) {
  Emitter& e = node.e;
  const DType wide = DType::kFloat64;
  const V count = node.reduced_points(wide), part = part_of(node);
  const V rough = e.convert(e.mul(e.wide_sum(x), part), DType::kFloat32);
  const V difference = e.sub(x, rough);
  // `one` is an argument that the compiler does not know, so this sum also compiles to fma, as the sum of squares does.
  // Processors add and multiply in different units.
  const V one = e.convert(e.scalar_float(1), DType::kFloat32);
  const V sum = e.wide_sum(e.mul(difference, one)), squares = e.wide_sum(e.mul(difference, difference));
  const V shift = e.mul(sum, part), excess = e.mul(sum, shift);
  const V is_close = e.op(ScalarOp::kLe, e.mul(excess, e.constant(wide, 16)), squares);
  const V good = e.op(ScalarOp::kLogicalAnd, f32_sums_suffice(node, squares), is_close);
  const Moments moments{count, part, e.add(e.convert(rough, wide), shift), e.sub(squares, excess)};
  return recomputed_moments(node, x, e.op(ScalarOp::kLogicalNot, good), moments);
}

enum class Wanted : uint8_t {
  kMean,     // the mean is a result, or a stored result depends on it
  kSquares,  // the squares are a result; the mean is not used
  kNeither,  // both are used, neither is a result
};

Moments moments_of(NodeEmitter& node, V x, Wanted wanted) {
  Emitter& e = node.e;
  if (e.type(x) == DType::kFloat32) {
    switch (wanted) {
      case Wanted::kMean:
        return moments_with_exact_mean(node, x);
      case Wanted::kSquares:
        return squares_about_rough_mean(node, x);
      case Wanted::kNeither:
        return moments_about_rough_mean(node, x);
    }
  }
  const DType wide = sum_type(e.type(x));
  const V count = node.reduced_points(wide);
  const V mean = e.div(sum_columns(e, x), count);
  const V centered = e.sub(e.convert(x, wide), mean), squares = sum_columns(e, e.mul(centered, centered));
  if (wide != e.type(x) || wanted == Wanted::kSquares) return {count, part_of(node), mean, squares};
  // The sum has no more digits than x. The second pass finds the mean's rounding error ("corrected two-pass", Chan,
  // Golub and LeVeque 1983). If a row's squares are not finite, there is nothing to correct.
  const V sum = sum_columns(e, centered), part = part_of(node), zero = e.constant(wide, 0);
  const V shift = e.mul(sum, part), excess = e.mul(sum, shift);
  const V is_finite = e.op(ScalarOp::kEq, e.sub(excess, excess), zero);
  return {count, part, e.add(mean, e.where(is_finite, shift, zero)), e.sub(squares, e.where(is_finite, excess, zero))};
}

// PyTorch's mean of a row with an infinity is NaN. In such a row `squares` is NaN.
V reported_mean(Emitter& e, const Moments& moments) {
  return e.where(e.op(ScalarOp::kIsNan, moments.squares), moments.squares, moments.mean);
}

V rstd_of(NodeEmitter& node, V variance) {
  Emitter& e = node.e;
  const DType type = e.type(variance);
  return e.div(e.constant(type, 1), e.op(ScalarOp::kSqrt, e.add(variance, node.operand("eps", type))));
}

// Splits an f64 into the sum of two f32.
std::pair<V, V> split_f64(Emitter& e, V wide) {
  const V high = e.convert(wide, DType::kFloat32);
  return {high, e.convert(e.sub(wide, e.convert(high, DType::kFloat64)), DType::kFloat32)};
}

// Returns (x - mean) * scale + shift in x's type; `scale` is in `sum_type`, and `shift` may be kNone. A mean that is
// wider than x is subtracted as two numbers of x's type. A mean far larger than the standard deviation then costs no
// digits. x is halved, so that the difference of large numbers is finite.
V shifted_and_scaled(Emitter& e, V x, V mean, V scale, V shift) {
  const DType type = e.type(x), wide = e.type(scale);
  if (e.type(mean) == type) {
    const V centered = e.sub(x, mean), factor = e.convert(scale, type);
    return shift == kNone ? e.mul(centered, factor) : e.fma(centered, factor, e.convert(shift, type));
  }
  const auto [high, low] = split_f64(e, e.mul(mean, e.constant(wide, 0.5)));
  const V centered = e.fma(x, e.constant(type, 0.5), e.op(ScalarOp::kNeg, high));
  const V factor = e.mul(scale, e.constant(wide, 2)), rest = e.mul(e.convert(low, wide), factor);
  const V added = shift == kNone ? e.op(ScalarOp::kNeg, rest) : e.sub(e.convert(shift, wide), rest);
  return e.fma(centered, e.convert(factor, type), e.convert(added, type));
}

// For norms whose weight and bias belong to a channel: they become part of the scale and the shift.
V channel_norm(NodeEmitter& node, V x, V mean, V rstd) {
  Emitter& e = node.e;
  const V scale = node.args.has("weight") ? e.mul(rstd, node.operand("weight", e.type(rstd))) : rstd;
  return shifted_and_scaled(e, x, mean, scale, node.args.has("bias") ? node.operand("bias", e.type(rstd)) : kNone);
}

// For norms whose weight and bias belong to an element of a row.
V element_norm(NodeEmitter& node, V x, V mean, V rstd) {
  Emitter& e = node.e;
  const DType type = e.type(x);
  const V normal = shifted_and_scaled(e, x, mean, rstd, kNone);
  if (!node.args.has("weight")) return node.args.has("bias") ? e.add(normal, node.operand("bias", type)) : normal;
  const V weight = node.operand("weight", type);
  return node.args.has("bias") ? e.fma(normal, weight, node.operand("bias", type)) : e.mul(normal, weight);
}

// Computes layer norm and group norm.
bool row_norm(NodeEmitter& node) {
  Emitter& e = node.e;
  const DType type = node.args.type("input");
  if (!ir::is_float(type)) return false;
  const V x = node.operand("input", type);
  const Moments moments = moments_of(node, x, Wanted::kNeither);
  const V rstd = rstd_of(node, e.mul(moments.squares, moments.part));
  const bool of_elements = node.member.form.expansion == Expansion::kLayerNorm;
  node.result(0, (of_elements ? element_norm : channel_norm)(node, x, moments.mean, rstd));
  node.result(1, reported_mean(e, moments));
  node.result(2, rstd);
  return true;
}

// The gradients of normalized rows, given the gradient `grad` of the result. The normalized row is `normal` * `scale`,
// where `scale` is one f64 per row. The mean of `normal` is not exactly 0, because the stored mean is rounded; this is
// corrected.
struct NormGradient {
  V input;            // the gradient of the input, divided by rstd
  V shift;            // the mean of `normal`, in `sum_type`
  V grad_dot_normal;  // the sum of grad * (normal - shift), in `sum_type`
};

NormGradient norm_gradient(NodeEmitter& node, V grad, V normal, V scale) {
  Emitter& e = node.e;
  const DType type = e.type(grad);
  const V part = part_of(node);
  const V sum = e.wide_sum(grad), shift = e.mul(e.wide_sum(normal), part);
  const V grad_dot_normal = e.sub(e.wide_sum(e.mul(grad, normal)), e.mul(sum, shift));
  const V slope = e.mul(e.mul(grad_dot_normal, part), e.mul(scale, scale));
  const V level = e.sub(e.mul(sum, part), e.mul(shift, slope));
  const V input = e.sub(e.sub(grad, e.convert(level, type)), e.mul(normal, e.convert(slope, type)));
  return {input, shift, grad_dot_normal};
}

// Computes the gradients of layer norm and group norm.
bool row_norm_backward(NodeEmitter& node) {
  Emitter& e = node.e;
  const DType type = node.args.type("input"), wide = sum_type(type);
  if (!ir::is_float(type)) return false;
  const V grad = node.operand("grad_out", type), rstd = node.operand("rstd", type);
  const V x = node.operand("input", type), mean = node.operand("mean", type);
  const V normal = e.mul(e.sub(x, mean), rstd);
  const V scaled = node.args.has("weight") ? e.mul(grad, node.operand("weight", type)) : grad;
  const NormGradient gradient = norm_gradient(node, scaled, normal, e.constant(wide, 1));
  if (node.is_result_used(0)) node.result(0, e.mul(gradient.input, rstd));
  for (const size_t result : {1, 2}) {  // with a single row, the sum is that row
    if (!node.is_result_used(result)) continue;
    const V product = e.mul(grad, e.sub(normal, e.convert(gradient.shift, type)));
    const V sum = node.sum_for(result, result == 1 ? product : grad);
    if (sum == kNone) return false;
    node.result(result, sum);
  }
  return true;
}

// running * (1 - momentum) + now * momentum
void update_running(NodeEmitter& node, std::string_view name, V now) {
  Emitter& e = node.e;
  if (!node.args.has(name)) return;
  const DType type = e.type(now);
  const V momentum = node.operand("momentum", type);
  const V rest = e.sub(e.constant(type, 1), momentum);
  node.update(name, e.add(e.mul(momentum, now), e.mul(rest, node.operand(name, type))));
}

bool batch_norm(NodeEmitter& node) {
  Emitter& e = node.e;
  const DType type = node.args.type("input"), wide = sum_type(type);
  if (!ir::is_float(type)) return false;
  const V x = node.operand("input", type);
  if (node.member.form.reduced == 0) {
    const V rstd = rstd_of(node, node.operand("running_var", wide));
    node.result(0, channel_norm(node, x, node.operand("running_mean", type), rstd));
    return true;
  }
  const Moments moments = moments_of(node, x, Wanted::kMean);
  const V rstd = rstd_of(node, e.mul(moments.squares, moments.part));
  node.result(0, channel_norm(node, x, moments.mean, rstd));
  node.result(1, moments.mean);
  node.result(2, rstd);
  update_running(node, "running_mean", moments.mean);
  update_running(node, "running_var", e.div(moments.squares, e.sub(moments.count, e.constant(wide, 1))));
  return true;
}

// The largest power of two that is at most `value`, a positive f32. The result is a normal number.
V power_near(Emitter& e, V value) {
  const auto whole = [&](int number) { return e.constant(DType::kInt32, number); };
  const V exponent = e.op(ScalarOp::kBitAnd, e.bits(value, DType::kInt32), whole(0x7F800000));
  const V least = e.op(ScalarOp::kMax, exponent, whole(0x00800000));
  return e.bits(e.op(ScalarOp::kMin, least, whole(0x7F000000)), DType::kFloat32);
}

bool batch_norm_backward(NodeEmitter& node) {
  Emitter& e = node.e;
  const DType type = node.args.type("input"), wide = sum_type(type);
  if (!ir::is_float(type)) return false;
  const bool trains = node.has_part("save_mean");
  const V mean = node.operand(trains ? "save_mean" : "running_mean", type);
  const V rstd = trains ? node.operand("save_invstd", wide) : rstd_of(node, node.operand("running_var", wide));
  const V grad = node.operand("grad_out", type), x = node.operand("input", type);
  // (x - mean) * power, where `power` is a power of two near rstd: this is exact, and no product overflows.
  const V power = type == DType::kFloat32 ? power_near(e, e.convert(rstd, type)) : e.constant(type, 1);
  const V centered = e.fma(x, power, e.op(ScalarOp::kNeg, e.mul(mean, power)));
  const V scale = e.div(rstd, e.convert(power, wide));
  V along = kNone, slope = grad;
  if (trains) {
    const NormGradient gradient = norm_gradient(node, grad, centered, scale);
    along = gradient.grad_dot_normal;
    slope = gradient.input;
  } else {
    along = e.wide_sum(e.mul(grad, centered));
  }
  if (node.is_result_used(0)) {
    const V factor = node.args.has("weight") ? e.mul(rstd, node.operand("weight", wide)) : rstd;
    node.result(0, e.mul(slope, e.convert(factor, type)));
  }
  node.result(1, e.mul(along, scale));
  node.result(2, e.wide_sum(grad));
  return true;
}

// The labels are checked as indices. If a label names no class, the kernel fails, and the runner that then executes the
// nodes one by one reports the error.
bool nll_loss(NodeEmitter& node) {
  Emitter& e = node.e;
  const DType type = loaded_type(node.result_dtype(0));
  const V here = axis_index(node, 1);
  if (here == kNone || node.member.reduces != ir::ReductionKind::kAll) return false;
  const V label = checked_index(node, node.args.find("target")->a, node.args.size("self", 1), false,
                                node.args.int_value("ignore_index"));
  const V counts = e.op(ScalarOp::kNe, label, node.operand("ignore_index"));
  const V place = e.where(counts, label, e.constant(DType::kInt64, 0));
  const V known = check_index_in_axis(node, "target", place, 1);
  const V hit = e.op(ScalarOp::kLogicalAnd, e.op(ScalarOp::kEq, here, label), counts);
  const V zero = e.constant(type, 0);
  V score = node.operand("self", type), counted = e.convert(counts, type);
  if (node.args.has("weight")) {
    const V weight = node.operand("weight", type);
    score = e.mul(score, weight);
    counted = e.reduce(Reduction::kSum, e.where(hit, weight, zero));
  }
  const DType wide = sum_type(type);  // a row's sum has only one nonzero term
  const V at_label = e.reduce(Reduction::kSum, e.where(hit, score, zero));
  const V sum = e.reduce(Reduction::kSum, e.convert(e.op(ScalarOp::kNeg, at_label), wide), Over::kRows);
  const V checked = e.where(e.op(ScalarOp::kEq, known, known), counted, zero);
  const V total = e.reduce(Reduction::kSum, e.convert(checked, wide), Over::kRows);
  node.result(0, node.args.int_value("reduction") == kMeanReduction ? e.div(sum, total) : sum);
  node.result(1, total);
  return true;
}

// -grad (divided by the number of labels or by the sum of their weights) at each row's label, and zero elsewhere.
bool nll_loss_backward(NodeEmitter& node) {
  Emitter& e = node.e;
  const DType type = loaded_type(node.result_dtype(0));
  const bool has_one_class = node.member.axes[1] == 0;
  const V here = has_one_class ? e.constant(DType::kInt64, 0) : axis_index(node, 1);
  if (here == kNone) return false;
  const V label = node.operand("target", DType::kInt64);
  V grad = node.operand("grad_output", type);
  if (node.args.int_value("reduction") == kMeanReduction) grad = e.div(grad, node.operand("total_weight", type));
  const V counts = e.op(ScalarOp::kLogicalAnd, e.op(ScalarOp::kEq, here, label),
                        e.op(ScalarOp::kNe, label, node.operand("ignore_index")));
  if (node.args.has("weight")) grad = e.mul(grad, node.operand("weight", type));
  node.result(0, e.where(counts, e.op(ScalarOp::kNeg, grad), e.constant(type, 0)));
  return true;
}

// The sum of squares about the mean, divided by the number of elements minus `correction` (1 if not given).
bool variance(NodeEmitter& node) {
  Emitter& e = node.e;
  const DType type = node.args.type("self");
  if (!ir::is_float(type) || node.member.reduces != ir::ReductionKind::kColumns) return false;
  const Expansion what = node.member.form.expansion;
  const bool gives_mean = what == Expansion::kVarMean || what == Expansion::kStdMean;
  const Moments moments = moments_of(node, node.operand("self", type), gives_mean ? Wanted::kMean : Wanted::kSquares);
  const double rest = static_cast<double>(node.count_reduced()) -
                      (node.args.has("correction") ? node.args.float_value("correction") : 1);
  const V var = e.div(moments.squares, e.convert(e.scalar_float(std::max(rest, 0.0)), sum_type(type)));
  const bool root = what == Expansion::kStd || what == Expansion::kStdMean;
  node.result(0, root ? e.op(ScalarOp::kSqrt, var) : var);
  if (gives_mean) node.result(1, reported_mean(e, moments));
  return true;
}

// log(sum(exp(x - max))) + max. If the maximum is infinite, nothing is subtracted, as in torch.
bool log_sum_exp(NodeEmitter& node) {
  Emitter& e = node.e;
  const DType type = node.args.type("self");
  if (!ir::is_float(type) || node.member.reduces != ir::ReductionKind::kColumns) return false;
  const V x = node.operand("self", type);
  const V max = e.reduce(Reduction::kMax, x);
  const V shift = e.where(e.op(ScalarOp::kIsInf, max), e.constant(type, 0), max);
  const V sum = e.reduce(Reduction::kSum, e.op(ScalarOp::kExp, e.sub(x, shift)));
  node.result(0, e.add(e.op(ScalarOp::kLog, sum), shift));
  return true;
}

// The result is in `sum_type`.
V sum_of_squares(NodeEmitter& node, V x) {
  Emitter& e = node.e;
  const V wide = e.convert(x, sum_type(e.type(x)));
  if (e.type(x) != DType::kFloat32 || node.member.reduces != ir::ReductionKind::kColumns) {
    return node.accumulate(Reduction::kSum, e.mul(wide, wide));
  }
  const V squares = e.wide_sum(e.mul(x, x));
  const V again = e.op(ScalarOp::kLogicalNot, f32_sums_suffice(node, squares));
  const V zero = e.constant(DType::kFloat64, 0);
  const V exact = e.reduce(Reduction::kSum, e.where(again, e.mul(wide, wide), zero));
  return e.where(again, exact, squares);
}

// (sum |x|^p)^(1/p), with simpler formulas for p = 0, 1, 2 and infinity.
bool vector_norm(NodeEmitter& node, V x) {
  Emitter& e = node.e;
  const DType type = e.type(x);
  if (!ir::is_float(type)) return false;
  const std::string_view name = node.args.has("ord") ? "ord" : "p";
  const double p = node.args.has(name) ? node.args.float_value(name) : 2;
  if (std::isinf(p) && node.count_reduced() == 0) return false;
  const V size = e.op(ScalarOp::kAbs, x);
  if (p == 2) {
    node.result(0, e.op(ScalarOp::kSqrt, sum_of_squares(node, x)));
  } else if (p == 1) {
    node.result(0, node.accumulate(Reduction::kSum, size));
  } else if (p == 0) {
    node.result(0, node.accumulate(Reduction::kSum, e.convert(e.to_bool(x), type)));
  } else if (std::isinf(p)) {
    node.result(0, node.reduce(p > 0 ? Reduction::kMax : Reduction::kMin, size));
  } else {
    const V power = e.convert(e.scalar_float(p), type);
    const V sum = node.accumulate(Reduction::kSum, e.op(ScalarOp::kPow, size, power));
    node.result(0, e.op(ScalarOp::kPow, sum, e.convert(e.scalar_float(1 / p), e.type(sum))));
  }
  return true;
}

// Whether one of the node's results contains indices, counts or bools.
bool has_exact_result(const NodeEmitter& node) {
  for (size_t i = 0; i < node.node.results.size(); ++i) {
    if (node.is_result_used(i) && !ir::is_float(node.result_dtype(i))) return true;
  }
  return false;
}

bool reduction(NodeEmitter& node) {
  Emitter& e = node.e;
  const DType result = loaded_type(node.result_dtype(0));
  const V x = has_exact_result(node) ? node.stored_operand(*node.args.find("self")) : node.operand("self");
  switch (node.member.form.expansion) {
    case Expansion::kSum:
      // A sum of bools is true if one of them is.
      node.result(0, node.accumulate(result == DType::kBool ? Reduction::kMax : Reduction::kSum, e.convert(x, result)));
      return true;
    case Expansion::kMean:
      node.result(0,
                  e.div(node.accumulate(Reduction::kSum, e.convert(x, result)), node.reduced_points(sum_type(result))));
      return true;
    case Expansion::kProduct:
      node.result(
          0, node.accumulate(result == DType::kBool ? Reduction::kMin : Reduction::kProduct, e.convert(x, result)));
      return true;
    case Expansion::kMax:
      node.result(0, node.reduce(Reduction::kMax, x));
      return true;
    case Expansion::kMin:
      node.result(0, node.reduce(Reduction::kMin, x));
      return true;
    case Expansion::kAny:
      node.result(0, node.reduce(Reduction::kMax, e.to_bool(x)));
      return true;
    case Expansion::kAll:
      node.result(0, node.reduce(Reduction::kMin, e.to_bool(x)));
      return true;
    case Expansion::kVectorNorm:
      return vector_norm(node, e.convert(x, result));
    case Expansion::kNanSum: {
      const V known = e.convert(x, result);
      const bool may_be_nan = ir::is_float(result);
      node.result(0, node.accumulate(
                         Reduction::kSum,
                         may_be_nan ? e.where(e.op(ScalarOp::kIsNan, known), e.constant(result, 0), known) : known));
      return true;
    }
    case Expansion::kCountNonzero:
      node.result(0, node.accumulate(Reduction::kSum, e.convert(e.to_bool(x), DType::kInt64)));
      return true;
    default: {
      // Reductions to indices exist over the columns of a row only.
      if (node.member.reduces != ir::ReductionKind::kColumns) return false;
      const Expansion what = node.member.form.expansion;
      const bool largest = what == Expansion::kArgMax || what == Expansion::kMaxWithIndex;
      const V at = e.reduce(largest ? Reduction::kArgMax : Reduction::kArgMin, x);
      const bool both = what == Expansion::kMaxWithIndex || what == Expansion::kMinWithIndex;
      if (both) node.result(0, e.reduce(largest ? Reduction::kMax : Reduction::kMin, x));
      node.result(both ? 1 : 0, at);
      return true;
    }
  }
}

// Float sums and products accumulate in f64; logcumsumexp accumulates in f32, as in torch.
bool cumulative(NodeEmitter& node, Reduction reduction) {
  Emitter& e = node.e;
  const DType result = loaded_type(node.result_dtype(0));
  if (!node.has_one_column() || result == DType::kBool) return false;
  const DType type = reduction == Reduction::kLogSumExp ? result : sum_type(result);
  node.result(0, e.convert(e.running(reduction, e.convert(node.operand("self", result), type)), result));
  return true;
}

// beta * self + alpha * (mat1 @ mat2). If beta is 0, `self` is not read, as it may contain NaN.
bool matmul(NodeEmitter& node) {
  Emitter& e = node.e;
  const bool adds = node.args.find("mat1") != nullptr;
  const DType type = node.args.type("mat2");
  const V product = e.mul(node.operand(adds ? "mat1" : "self", type), node.operand("mat2", type));
  V sum = node.reduce(Reduction::kSum, product);
  if (adds) {
    const double beta = node.args.float_value("beta"), alpha = node.args.float_value("alpha");
    if (alpha != 1) sum = e.mul(sum, e.convert(e.scalar_float(alpha), type));
    if (beta != 0) {
      V self = node.operand("self", type);
      if (beta != 1) self = e.mul(self, e.convert(e.scalar_float(beta), type));
      sum = e.add(sum, self);
    }
  }
  node.result(0, sum);
  return true;
}

}  // namespace

bool expand(NodeEmitter& node) {
  switch (node.member.form.expansion) {
    case Expansion::kNone:
    case Expansion::kCat:
    case Expansion::kStack:
    case Expansion::kSliceBackward:
    case Expansion::kSelectBackward:
      return false;
    case Expansion::kExpression:
      return expand_expression(node);
    case Expansion::kCopy:
      return copy(node);
    case Expansion::kFill:
      return fill(node);
    case Expansion::kGelu:
    case Expansion::kGeluBackward:
    case Expansion::kEluBackward:
    case Expansion::kLogit:
    case Expansion::kLogitBackward:
    case Expansion::kLogSigmoidBackward:
    case Expansion::kClamp:
    case Expansion::kClampByTensors:
    case Expansion::kNanToNum:
    case Expansion::kLogSigmoid:
    case Expansion::kPreluBackward:
      return expand_activation(node);
    case Expansion::kDropout:
      return dropout(node);
    case Expansion::kMseLoss:
    case Expansion::kMseLossBackward:
    case Expansion::kSmoothL1Loss:
    case Expansion::kSmoothL1LossBackward:
    case Expansion::kHuberLoss:
    case Expansion::kHuberLossBackward:
    case Expansion::kSoftMarginLoss:
    case Expansion::kSoftMarginLossBackward:
    case Expansion::kBceWithLogits:
    case Expansion::kBceBackward:
      return expand_loss(node);
    case Expansion::kSoftmax:
      return softmax(node, false);
    case Expansion::kLogSoftmax:
      return softmax(node, true);
    case Expansion::kSoftmaxBackward:
      return softmax_backward(node, false);
    case Expansion::kLogSoftmaxBackward:
      return softmax_backward(node, true);
    case Expansion::kLayerNorm:
    case Expansion::kGroupNorm:
      return row_norm(node);
    case Expansion::kLayerNormBackward:
    case Expansion::kGroupNormBackward:
      return row_norm_backward(node);
    case Expansion::kBatchNorm:
      return batch_norm(node);
    case Expansion::kBatchNormBackward:
      return batch_norm_backward(node);
    case Expansion::kVar:
    case Expansion::kStd:
    case Expansion::kVarMean:
    case Expansion::kStdMean:
      return variance(node);
    case Expansion::kLogSumExp:
      return log_sum_exp(node);
    case Expansion::kCumsum:
      return cumulative(node, Reduction::kSum);
    case Expansion::kCumprod:
      return cumulative(node, Reduction::kProduct);
    case Expansion::kLogCumSumExp:
      return cumulative(node, Reduction::kLogSumExp);
    case Expansion::kNllLoss:
      return nll_loss(node);
    case Expansion::kNllLossBackward:
      return nll_loss_backward(node);
    case Expansion::kEmbedding:
    case Expansion::kEmbeddingBackward:
    case Expansion::kIndexSelect:
    case Expansion::kGather:
    case Expansion::kTake:
    case Expansion::kIndex:
    case Expansion::kIndexAdd:
    case Expansion::kIndexCopy:
    case Expansion::kIndexPut:
    case Expansion::kScatter:
    case Expansion::kScatterAdd:
      return expand_indices(node);
    case Expansion::kMatmul:
      return matmul(node);
    case Expansion::kFusedAdam:
    case Expansion::kFusedAdamW:
    case Expansion::kFusedSgd:
      return expand_optimizer(node);
    default:
      return reduction(node);
  }
}

}  // namespace torch_remote::codegen
