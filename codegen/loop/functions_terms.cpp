#include <bit>
#include <cmath>

#include "codegen/loop/functions.h"

// The operations of terms, which append values.
namespace torch_remote::codegen::functions {
namespace {

Value operation(ScalarOp op, DType type) {
  Value value;
  value.kind = Kind::kScalarOp;
  value.op = op;
  value.type = type;
  return value;
}

bool answers(ScalarOp op) {
  switch (op) {
    case ScalarOp::kEq:
    case ScalarOp::kNe:
    case ScalarOp::kLt:
    case ScalarOp::kLe:
    case ScalarOp::kGt:
    case ScalarOp::kGe:
      return true;
    default:
      return false;
  }
}

}  // namespace

DType Term::type() const { return builder->value(id).type; }
Term Term::constant(double number) const { return builder->constant(type(), number); }
Term Term::integer_constant(int64_t number) const { return builder->integer_constant(type(), number); }

Term Term::as(DType to) const {
  Value value;
  value.kind = Kind::kConvert;
  value.type = to;
  value.a = id;
  return to == type() ? *this : builder->make(value);
}

Term Term::bits(DType to) const {
  Value value;
  value.kind = Kind::kBits;
  value.type = to;
  value.a = id;
  return builder->make(value);
}

Builder::Key Builder::key(const Value& value) {
  return {value.kind,   value.type, value.op, value.a, value.b, value.c, std::bit_cast<uint64_t>(value.number),
          value.integer};
}

Term Builder::make(const Value& value) {
  const auto [place, is_new] = known_.try_emplace(key(value), static_cast<uint32_t>(values_.size()));
  if (is_new) values_.push_back(value);
  return {this, place->second};
}

uint32_t Builder::append(const Value& value) {
  const auto place = static_cast<uint32_t>(values_.size());
  const bool has_key = value.kind == Kind::kConstant || value.kind == Kind::kConvert || value.kind == Kind::kBits ||
                       value.kind == Kind::kScalarOp || value.kind == Kind::kFma;
  if (has_key) known_.try_emplace(key(value), place);
  values_.push_back(value);
  return place;
}

Term Builder::op(ScalarOp op, Term a, Term b, Term c) {
  const DType type = answers(op) ? DType::kBool : op == ScalarOp::kWhere ? b.type() : a.type();
  Value value = operation(op, type);
  value.a = a.id;
  value.b = b.id;
  value.c = c.id;
  return make(value);
}

Term Builder::constant(DType type, double number) {
  Value value;
  value.type = type;
  value.number = number;
  return make(value);
}

Term Builder::integer_constant(DType type, int64_t number) {
  Value value;
  value.type = type;
  value.integer = number;
  return make(value);
}

Term operator-(Term a) { return a.builder->op(ScalarOp::kNeg, a); }
Term operator+(Term a, Term b) { return a.builder->op(ScalarOp::kAdd, a, b); }
Term operator-(Term a, Term b) { return a.builder->op(ScalarOp::kSub, a, b); }
Term operator*(Term a, Term b) { return a.builder->op(ScalarOp::kMul, a, b); }
Term operator/(Term a, Term b) { return a.builder->op(ScalarOp::kDiv, a, b); }
Term operator+(Term a, FloatOperand b) { return a + a.constant(b.value); }
Term operator-(Term a, FloatOperand b) { return a - a.constant(b.value); }
Term operator-(FloatOperand a, Term b) { return b.constant(a.value) - b; }
Term operator*(Term a, FloatOperand b) { return a * a.constant(b.value); }
Term operator/(FloatOperand a, Term b) { return b.constant(a.value) / b; }

Term operator==(Term a, Term b) { return a.builder->op(ScalarOp::kEq, a, b); }
Term operator!=(Term a, Term b) { return a.builder->op(ScalarOp::kNe, a, b); }
Term operator<(Term a, Term b) { return a.builder->op(ScalarOp::kLt, a, b); }
Term operator<=(Term a, Term b) { return a.builder->op(ScalarOp::kLe, a, b); }
Term operator>(Term a, Term b) { return a.builder->op(ScalarOp::kGt, a, b); }
Term operator>=(Term a, Term b) { return a.builder->op(ScalarOp::kGe, a, b); }
Term operator==(Term a, FloatOperand b) { return a == a.constant(b.value); }
Term operator!=(Term a, FloatOperand b) { return a != a.constant(b.value); }
Term operator<(Term a, FloatOperand b) { return a < a.constant(b.value); }
Term operator<=(Term a, FloatOperand b) { return a <= a.constant(b.value); }
Term operator>(Term a, FloatOperand b) { return a > a.constant(b.value); }
Term operator>=(Term a, FloatOperand b) { return a >= a.constant(b.value); }

Term operator&&(Term a, Term b) { return a.builder->op(ScalarOp::kLogicalAnd, a, b); }
Term operator||(Term a, Term b) { return a.builder->op(ScalarOp::kLogicalOr, a, b); }
Term operator!(Term a) { return a.builder->op(ScalarOp::kLogicalNot, a); }

Term operator&(Term a, IntegerOperand b) { return a.builder->op(ScalarOp::kBitAnd, a, a.integer_constant(b.value)); }
Term operator|(Term a, Term b) { return a.builder->op(ScalarOp::kBitOr, a, b); }
Term operator^(Term a, Term b) { return a.builder->op(ScalarOp::kBitXor, a, b); }
Term operator<<(Term a, IntegerOperand b) {
  return a.builder->op(ScalarOp::kShiftLeft, a, a.integer_constant(b.value));
}
Term operator>>(Term a, IntegerOperand b) {
  return a.builder->op(ScalarOp::kShiftRight, a, a.integer_constant(b.value));
}
Term operator+(Term a, IntegerOperand b) { return a + a.integer_constant(b.value); }
Term operator-(Term a, IntegerOperand b) { return a - a.integer_constant(b.value); }
Term operator-(IntegerOperand a, Term b) { return b.integer_constant(a.value) - b; }
Term operator==(Term a, IntegerOperand b) { return a == a.integer_constant(b.value); }
Term operator!=(Term a, IntegerOperand b) { return a != a.integer_constant(b.value); }
Term operator<(Term a, IntegerOperand b) { return a < a.integer_constant(b.value); }

Term fma(Term a, Term b, Term c) {
  Value value;
  value.kind = Kind::kFma;
  value.type = a.type();
  value.a = a.id;
  value.b = b.id;
  value.c = c.id;
  return a.builder->make(value);
}
Term ldexp(Term a, Term b) {
  Value value;
  value.kind = Kind::kLdexp;
  value.type = a.type();
  value.a = a.id;
  value.b = b.id;
  return a.builder->make(value);
}

Term fma(Term a, FloatOperand b, Term c) { return fma(a, a.constant(b.value), c); }
Term fma(Term a, Term b, FloatOperand c) { return fma(a, b, a.constant(c.value)); }
Term fma(Term a, FloatOperand b, FloatOperand c) { return fma(a, a.constant(b.value), a.constant(c.value)); }

Term where(Term condition, Term b, Term c) { return condition.builder->op(ScalarOp::kWhere, condition, b, c); }
Term where(Term condition, FloatOperand b, Term c) { return where(condition, c.constant(b.value), c); }
Term where(Term condition, Term b, FloatOperand c) { return where(condition, b, b.constant(c.value)); }
Term where(Term condition, DType type, double b, double c) {
  return where(condition, condition.builder->constant(type, b), condition.builder->constant(type, c));
}

Term abs(Term a) { return a.builder->op(ScalarOp::kAbs, a); }
Term sqrt(Term a) { return a.builder->op(ScalarOp::kSqrt, a); }
Term round(Term a) { return a.builder->op(ScalarOp::kRound, a); }
Term trunc(Term a) { return a.builder->op(ScalarOp::kTrunc, a); }
Term floor(Term a) { return a.builder->op(ScalarOp::kFloor, a); }
Term copysign(Term a, Term b) { return a.builder->op(ScalarOp::kCopysign, a, b); }
Term max(Term a, Term b) { return a.builder->op(ScalarOp::kMax, a, b); }
Term min(Term a, Term b) { return a.builder->op(ScalarOp::kMin, a, b); }

// Comparisons with NaN are false, so NaN is returned.
Term clamp_max(Term a, double bound) { return where(a > bound, bound, a); }
Term clamp_min(Term a, double bound) { return where(a < bound, bound, a); }

Term polynomial(std::span<const double> coefficients, Term x) {
  Term sum = x.constant(coefficients.back());
  for (size_t i = coefficients.size() - 1; i-- > 0;) sum = fma(sum, x, coefficients[i]);
  return sum;
}

Term polynomial(double first, std::span<const double> coefficients, Term x) {
  return fma(polynomial(coefficients, x), x, first);
}

Pair quick_sum(Term a, Term b) {
  const Term sum = a + b;
  return {sum, b - (sum - a)};
}

Pair exact_sum(Term a, Term b) {
  const Term sum = a + b;
  const Term other = sum - a;
  return {sum, (a - (sum - other)) + (b - other)};
}

Pair exact_product(Term a, Term b) {
  const Term product = a * b;
  return {product, fma(a, b, -product)};
}

Pair multiply(Pair a, Pair b) {
  const Pair product = exact_product(a.high, b.high);
  return quick_sum(product.high, fma(a.high, b.low, fma(a.low, b.high, product.low)));
}

Pair add(Pair a, Pair b) {
  const Pair sum = quick_sum(a.high, b.high);
  return quick_sum(sum.high, sum.low + (a.low + b.low));
}

const Format& single_format() {
  static constexpr Format kFormat{Precision::kSingle, DType::kFloat32, DType::kInt32, 23, 127, 0x1.8p23, 0x1p-126};
  return kFormat;
}
const Format& double_for_single_format() {
  static constexpr Format kFormat{
      Precision::kDoubleForSingle, DType::kFloat64, DType::kInt64, 52, 1023, 0x1.8p52, 0x1p-1022};
  return kFormat;
}
const Format& double_format() {
  static constexpr Format kFormat{Precision::kDouble, DType::kFloat64, DType::kInt64, 52, 1023, 0x1.8p52, 0x1p-1022};
  return kFormat;
}

std::span<const double> select_coefficients(const Format& format, std::span<const double> single,
                                            std::span<const double> middle, std::span<const double> wide) {
  switch (format.precision) {
    case Precision::kSingle:
      return single;
    case Precision::kDoubleForSingle:
      return middle;
    case Precision::kDouble:
      break;
  }
  return wide;
}

}  // namespace torch_remote::codegen::functions
