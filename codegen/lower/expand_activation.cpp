#include <limits>
#include <numbers>

#include "codegen/loop/scalar_math.h"
#include "codegen/loop/scalar_ops.h"
#include "codegen/lower/expand.h"

// Activations, and gradients of activations, that no scalar tree of elements and numbers expresses.
namespace torch_remote::codegen {
namespace {

using ir::DType;
using ir::Expansion;
using ir::ScalarOp;

const ir::Arg* approximate(const NodeEmitter& node) {
  const ir::Arg* arg = node.args.find("approximate");
  return arg != nullptr && arg->tag == ir::ArgTag::kString ? arg : nullptr;
}

// x / 2 * (1 + erf(x / sqrt(2))). With approximate="tanh": x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))).
bool gelu(NodeEmitter& node) {
  Emitter& e = node.e;
  const DType type = node.args.type("self");
  const ir::Arg* how = approximate(node);
  if (!ir::is_float(type) || how == nullptr) return false;
  const V x = node.operand("self", type);
  const V half = e.mul(x, e.constant(type, 0.5));
  V inner = kNone;
  if (how->text == "none") {
    inner = e.op(ScalarOp::kErf, e.mul(x, e.constant(type, std::numbers::sqrt2 / 2)));
  } else {
    const V cube = e.mul(e.mul(x, x), x);
    const V sum = e.add(x, e.mul(e.constant(type, 0.044715), cube));
    inner = e.op(ScalarOp::kTanh, e.mul(e.constant(type, std::numbers::sqrt2 * std::numbers::inv_sqrtpi), sum));
  }
  node.fill(e.mul(half, e.add(e.constant(type, 1), inner)));
  return true;
}

bool gelu_backward(NodeEmitter& node) {
  Emitter& e = node.e;
  const DType type = node.args.type("self");
  const ir::Arg* how = approximate(node);
  if (!ir::is_float(type) || how == nullptr) return false;
  const V grad = node.operand("grad_output", type), x = node.operand("self", type);
  const V one = e.constant(type, 1), half = e.constant(type, 0.5);
  V slope = kNone;
  if (how->text == "none") {
    const V cdf = e.mul(half, e.add(one, e.op(ScalarOp::kErf, e.mul(x, e.constant(type, std::numbers::sqrt2 / 2)))));
    const V density = e.mul(e.op(ScalarOp::kExp, e.mul(e.mul(x, x), e.constant(type, -0.5))),
                            e.constant(type, std::numbers::inv_sqrtpi * std::numbers::sqrt2 / 2));
    slope = e.add(cdf, e.mul(x, density));
  } else {
    const V beta = e.constant(type, std::numbers::sqrt2 * std::numbers::inv_sqrtpi), kappa = e.constant(type, 0.044715);
    const V square = e.mul(x, x);
    const V tanh = e.op(ScalarOp::kTanh, e.mul(beta, e.add(x, e.mul(kappa, e.mul(square, x)))));
    const V inner = e.mul(beta, e.add(one, e.mul(e.mul(e.constant(type, 3), kappa), square)));
    const V right = e.mul(e.mul(e.mul(half, x), e.sub(one, e.mul(tanh, tanh))), inner);
    slope = e.add(e.mul(half, e.add(one, tanh)), right);
  }
  node.fill(e.mul(grad, slope));
  return true;
}

// `self_or_result` is x, or the result, which is alpha * scale * (exp(input_scale * x) - 1) below zero.
bool elu_backward(NodeEmitter& node) {
  Emitter& e = node.e;
  const DType type = node.args.type("self_or_result");
  if (!ir::is_float(type)) return false;
  const V grad = node.operand("grad_output", type), x = node.operand("self_or_result", type);
  const V scale = node.operand("scale", type), input_scale = node.operand("input_scale", type);
  const V depth = e.mul(node.operand("alpha", type), scale);
  const V below = node.args.bool_value("is_result")
                      ? e.mul(e.mul(grad, input_scale), e.add(x, depth))
                      : e.mul(e.mul(e.mul(grad, input_scale), depth), e.op(ScalarOp::kExp, e.mul(x, input_scale)));
  node.fill(e.where(e.op(ScalarOp::kLe, x, e.constant(type, 0)), below, e.mul(grad, scale)));
  return true;
}

// The bounds that logit clamps to. `none` is true if eps is below zero: there are no bounds then.
struct LogitBounds {
  V low, high, none;
};

LogitBounds logit_bounds(NodeEmitter& node, DType type) {
  Emitter& e = node.e;
  const V eps = node.operand("eps", type);
  return {eps, e.sub(e.constant(type, 1), eps), e.op(ScalarOp::kLt, eps, e.constant(type, 0))};
}

bool logit(NodeEmitter& node) {
  Emitter& e = node.e;
  const DType type = node.args.type("self");
  if (!ir::is_float(type)) return false;
  V x = node.operand("self", type);
  if (node.args.has("eps")) {
    const LogitBounds bounds = logit_bounds(node, type);
    const V below = e.op(ScalarOp::kLt, x, bounds.low), above = e.op(ScalarOp::kGt, x, bounds.high);
    x = e.where(bounds.none, x, e.where(below, bounds.low, e.where(above, bounds.high, x)));
  }
  node.fill(e.op(ScalarOp::kLog, e.div(x, e.sub(e.constant(type, 1), x))));
  return true;
}

bool logit_backward(NodeEmitter& node) {
  Emitter& e = node.e;
  const DType type = node.args.type("self");
  if (!ir::is_float(type)) return false;
  const V grad = node.operand("grad_output", type), x = node.operand("self", type);
  const V zero = e.constant(type, 0), one = e.constant(type, 1);
  const auto within = [&](V low, V high) {  // false for NaN
    return e.op(ScalarOp::kLogicalAnd, e.op(ScalarOp::kGe, x, low), e.op(ScalarOp::kLe, x, high));
  };
  const V slope = e.div(grad, e.mul(x, e.sub(one, x)));
  const V at_end = e.op(ScalarOp::kLogicalOr, e.op(ScalarOp::kEq, x, zero), e.op(ScalarOp::kEq, x, one));
  const V infinity = e.mul(grad, e.constant(type, std::numeric_limits<double>::infinity()));
  V value = e.where(within(zero, one), e.where(at_end, infinity, slope),
                    e.constant(type, std::numeric_limits<double>::quiet_NaN()));
  if (node.args.has("eps")) {
    const LogitBounds bounds = logit_bounds(node, type);
    value = e.where(bounds.none, value, e.where(within(bounds.low, bounds.high), slope, zero));
  }
  node.fill(value);
  return true;
}

// grad * (1 - sigmoid(x)). With z = exp(-|x|) the slope is 1 - z / (1 + z) below zero, and z / (1 + z) above.
bool log_sigmoid_backward(NodeEmitter& node) {
  Emitter& e = node.e;
  const DType type = node.args.type("self");
  if (!ir::is_float(type)) return false;
  const V x = node.operand("self", type), one = e.constant(type, 1);
  const V z = e.op(ScalarOp::kExp, e.op(ScalarOp::kNeg, e.op(ScalarOp::kAbs, x)));
  const V part = e.div(z, e.add(one, z));
  const V slope = e.where(e.op(ScalarOp::kLt, x, e.constant(type, 0)), e.sub(one, part), part);
  node.result(0, e.mul(node.operand("grad_output", type), slope));
  return true;
}

// Whether an integer type can represent the number.
bool has_integer(DType memory, int64_t value) {
  return accepts(OperandTypes::kIntegers, memory) && wrapped(memory, value) == value;
}

double largest_of(DType memory) {
  switch (memory) {
    case DType::kFloat16:
      return 65504;
    case DType::kBFloat16:
      return 0x1.FEp127;
    case DType::kFloat32:
      return std::numeric_limits<float>::max();
    default:
      return std::numeric_limits<double>::max();
  }
}

// A number equal to a bound stays as it is. A NaN bound makes the result NaN. The upper bound wins over the lower one.
bool clamp(NodeEmitter& node, bool by_tensors) {
  Emitter& e = node.e;
  const DType memory = node.result_dtype(0), type = loaded_type(memory);
  if (type == DType::kBool) return false;
  V x = node.operand("self", type);
  for (const std::string_view name : {"min", "max"}) {
    if (!node.args.has(name)) continue;
    // A bound that the integer type cannot represent is an error; torch raises it.
    if (!by_tensors && !ir::is_float(memory) && !has_integer(memory, node.args.int_value(name))) return false;
    const V bound = node.operand(name, type);
    const ScalarOp op = name == "min" ? ScalarOp::kMax : ScalarOp::kMin;
    x = by_tensors ? e.op(op, x, bound) : e.op(op, bound, x);
  }
  node.fill(x);
  return true;
}

// Whether a value is NaN or infinite depends on the type in memory, so half types are rounded first.
bool nan_to_num(NodeEmitter& node) {
  Emitter& e = node.e;
  const DType memory = node.result_dtype(0), type = loaded_type(memory);
  V x = node.operand("self", type);
  if (!ir::is_float(memory)) {
    node.fill(x);
    return true;
  }
  if (is_half(memory)) x = e.rounded(x, memory);
  const auto given = [&](std::string_view name, double otherwise) {
    return node.args.has(name) ? node.operand(name, type) : e.constant(type, otherwise);
  };
  const double largest = largest_of(memory);
  const V nan = given("nan", 0), above = given("posinf", largest), below = given("neginf", -largest);
  const V positive = e.op(ScalarOp::kGt, x, e.constant(type, 0));
  const V finite = e.where(e.op(ScalarOp::kIsInf, x), e.where(positive, above, below), x);
  node.fill(e.where(e.op(ScalarOp::kIsNan, x), nan, finite));
  return true;
}

// min(x, 0) - log1p(z), with z = exp(-|x|). z is the second result, for the gradient.
bool log_sigmoid(NodeEmitter& node) {
  Emitter& e = node.e;
  const DType type = node.args.type("self");
  if (!ir::is_float(type)) return false;
  const V x = node.operand("self", type);
  const V z = e.op(ScalarOp::kExp, e.op(ScalarOp::kNeg, e.op(ScalarOp::kAbs, x)));
  node.result(0, e.sub(e.op(ScalarOp::kMin, x, e.constant(type, 0)), e.op(ScalarOp::kLog1p, z)));
  node.result(1, z);
  return true;
}

bool prelu_backward(NodeEmitter& node) {
  Emitter& e = node.e;
  const DType type = node.args.type("self");
  if (!ir::is_float(type)) return false;
  const V x = node.operand("self", type), grad = node.operand("grad_output", type);
  const V positive = e.op(ScalarOp::kGt, x, e.constant(type, 0));
  node.result(0, e.where(positive, grad, e.mul(node.operand("weight", type), grad)));
  node.result(1, e.where(positive, e.constant(type, 0), e.mul(x, grad)));
  return true;
}

}  // namespace

bool expand_activation(NodeEmitter& node) {
  switch (node.member.form.expansion) {
    case Expansion::kGelu:
      return gelu(node);
    case Expansion::kGeluBackward:
      return gelu_backward(node);
    case Expansion::kEluBackward:
      return elu_backward(node);
    case Expansion::kLogit:
      return logit(node);
    case Expansion::kLogitBackward:
      return logit_backward(node);
    case Expansion::kLogSigmoidBackward:
      return log_sigmoid_backward(node);
    case Expansion::kClamp:
      return clamp(node, false);
    case Expansion::kClampByTensors:
      return clamp(node, true);
    case Expansion::kNanToNum:
      return nan_to_num(node);
    case Expansion::kLogSigmoid:
      return log_sigmoid(node);
    case Expansion::kPreluBackward:
      return prelu_backward(node);
    default:
      return false;
  }
}

}  // namespace torch_remote::codegen
