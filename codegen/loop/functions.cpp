#include "codegen/loop/functions.h"

#include <limits>
#include <optional>
#include <utility>

// Selects the expansion of each function.
namespace torch_remote::codegen {
namespace {

using namespace functions;

using Unary = Term (*)(const Format&, Term);

// `single` is nullptr if f32 is computed in f64 (double_for_single_format).
struct UnaryFunction {
  ScalarOp op;
  Unary single, wide;
};
constexpr UnaryFunction kUnaries[] = {
    {ScalarOp::kExp, exp, exp},
    {ScalarOp::kExp2, exp2, exp2},
    {ScalarOp::kExpm1, expm1, expm1},
    {ScalarOp::kLog, log, log},
    {ScalarOp::kLog2, log2, log2},
    {ScalarOp::kLog10, log10, log10},
    {ScalarOp::kLog1p, log1p, log1p},
    {ScalarOp::kSin, sin, sin},
    {ScalarOp::kCos, cos, cos},
    {ScalarOp::kTan, nullptr, tan},
    {ScalarOp::kAsin, asin, asin},
    {ScalarOp::kAcos, acos, acos},
    {ScalarOp::kAtan, atan, atan},
    {ScalarOp::kSinh, sinh, sinh},
    {ScalarOp::kCosh, cosh, cosh},
    {ScalarOp::kTanh, tanh, tanh},
    {ScalarOp::kAsinh, nullptr, asinh},
    {ScalarOp::kAcosh, nullptr, acosh},
    {ScalarOp::kAtanh, nullptr, atanh},
    {ScalarOp::kErf, erf_single, erf},
    {ScalarOp::kErfc, nullptr, erfc},
    {ScalarOp::kLgamma, nullptr, lgamma},
    {ScalarOp::kSigmoid, sigmoid_single, sigmoid},
};

std::optional<Term> unary(ScalarOp op, Term x) {
  for (const UnaryFunction& function : kUnaries) {
    if (function.op != op) continue;
    if (x.type() == DType::kFloat64) return function.wide(double_format(), x);
    if (function.single != nullptr) return function.single(single_format(), x);
    return function.wide(double_for_single_format(), x.as(DType::kFloat64)).as(DType::kFloat32);
  }
  return std::nullopt;
}

using Binary = Term (*)(const Format&, Term, Term);

Term binary_in_double(Binary function, Term x, Term y) {
  if (x.type() == DType::kFloat64) return function(double_format(), x, y);
  return function(double_for_single_format(), x.as(DType::kFloat64), y.as(DType::kFloat64)).as(DType::kFloat32);
}

// Exponents that need no logarithm. sqrt differs from pow for -0 and -infinity.
std::optional<Term> power_of_constant(Term x, double exponent) {
  if (exponent == 0) return x.constant(1);
  if (exponent == 1) return x;
  if (exponent == 2) return x * x;
  if (exponent == 3) return x * x * x;
  if (exponent == -1) return 1.0 / x;
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (exponent == 0.5) return where(x == -kInfinity, kInfinity, sqrt(x + 0.0));
  return std::nullopt;
}

Term power(Term x, Term y) {
  const Value& exponent = y.builder->value(y.id);
  if (exponent.kind == Kind::kConstant) {
    if (const auto known = power_of_constant(x, exponent.number)) return *known;
  }
  return binary_in_double(pow, x, y);
}

std::optional<Term> of_floats(ScalarOp op, Term x, Term y) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  switch (op) {
    case ScalarOp::kRsqrt:
      return 1.0 / sqrt(x);
    case ScalarOp::kReciprocal:
      return 1.0 / x;
    case ScalarOp::kSign:  // 0 for NaN
      return where(x > 0.0, 1.0, where(x < 0.0, x.type(), -1.0, 0.0));
    case ScalarOp::kIsNan:
      return x != x;
    case ScalarOp::kIsInf:
      return abs(x) == kInfinity;
    case ScalarOp::kAtan2:
      return atan2(x.type() == DType::kFloat64 ? double_format() : single_format(), x, y);
    case ScalarOp::kPow:
      return power(x, y);
    case ScalarOp::kHypot:
      return binary_in_double(hypot, x, y);
    case ScalarOp::kFmod:
      return binary_in_double(fmod, x, y);
    case ScalarOp::kRemainder:
      return remainder_from(binary_in_double(fmod, x, y), y);
    case ScalarOp::kFloorDiv:
      return floor_div_from(binary_in_double(fmod, x, y), x, y);
    default:
      return unary(op, x);
  }
}

Term power_of_whole(Term a, Term b) {
  const Value& exponent = b.builder->value(b.id);
  if (exponent.kind == Kind::kConstant && exponent.integer >= 0) {
    return int_power(a, static_cast<uint64_t>(exponent.integer));
  }
  return int_pow(a, b);
}

std::optional<Term> of_integers(ScalarOp op, Term a, Term b) {
  switch (op) {
    case ScalarOp::kSign:
      return where(a > a.integer_constant(0), a.integer_constant(1),
                   where(a < 0, -a.integer_constant(1), a.integer_constant(0)));
    case ScalarOp::kIsNan:
    case ScalarOp::kIsInf:
      return a.builder->integer_constant(DType::kBool, 0);
    case ScalarOp::kFmod:
      return int_fmod(a, b);
    case ScalarOp::kRemainder:
      return int_remainder(a, b);
    case ScalarOp::kFloorDiv:
      return int_floor_div(a, b);
    case ScalarOp::kPow:
      return power_of_whole(a, b);
    default:
      return std::nullopt;
  }
}

std::optional<Term> expanded(Builder& builder, const Value& value) {
  if (value.kind != Kind::kScalarOp) return std::nullopt;
  const Term a = builder.term(value.a), b = builder.term(value.b);
  return a.type() == DType::kFloat32 || a.type() == DType::kFloat64 ? of_floats(value.op, a, b)
                                                                    : of_integers(value.op, a, b);
}

}  // namespace

void expand_functions(Kernel& kernel) {
  std::vector<Value> values;
  values.reserve(kernel.values.size());
  Builder builder(values);
  std::vector<uint32_t> places(kernel.values.size(), kNone);
  for (size_t i = 0; i < kernel.values.size(); ++i) {
    Value value = kernel.values[i];
    // For these two kinds, `a` is not a value.
    const bool has_operands = value.kind != Kind::kScalar && value.kind != Kind::kIndex;
    for (uint32_t* operand : {&value.a, &value.b, &value.c}) {
      if (has_operands && *operand != kNone) *operand = places[*operand];
    }
    for (uint32_t& index : value.indices) index = places[index];
    const std::optional<Term> term = expanded(builder, value);
    places[i] = term ? term->id : builder.append(value);
  }
  kernel.values = std::move(values);
  for (Store& store : kernel.stores) {
    store.value = places[store.value];
    for (uint32_t& index : store.indices) index = places[index];
  }
}

std::vector<Value> log_add_exp(ir::DType type) {
  std::vector<Value> values;
  Builder builder(values);
  const Term x = builder.term(builder.append({.kind = Kind::kScalar, .type = type, .a = 0}));
  const Term y = builder.term(builder.append({.kind = Kind::kScalar, .type = type, .a = 1}));
  const Term result = functions::log_add_exp(type == DType::kFloat64 ? double_format() : single_format(), x, y);
  values.resize(result.id + 1);
  return values;
}

}  // namespace torch_remote::codegen
