#pragma once

#include <concepts>
#include <cstdint>
#include <map>
#include <span>
#include <tuple>
#include <vector>

#include "codegen/loop/loop_ir.h"

// Inside of expand_functions: how an elementary function is written as values of a kernel.
namespace torch_remote::codegen::functions {

using ir::DType;
using ir::ScalarOp;

class Builder;

// A value that is being made use of; operators append to the builder. A number beside it is a constant of its type.
struct Term {
  Builder* builder = nullptr;
  uint32_t id = kNone;

  DType type() const;
  Term constant(double number) const;  // of this term's type
  Term whole(int64_t number) const;    // of this term's type, one of integers
  Term as(DType type) const;           // converted
  Term bits(DType type) const;
};

// Appends values to a kernel. Equal ones are made once.
class Builder {
 public:
  explicit Builder(std::vector<Value>& values) : values_(values) {}

  Term make(const Value& value);
  // Of the kernel that is rewritten: made whether it is known or not.
  uint32_t append(const Value& value);
  Term op(ScalarOp op, Term a, Term b = {}, Term c = {});
  Term constant(DType type, double number);
  Term whole(DType type, int64_t number);
  Term term(uint32_t id) { return {this, id}; }
  const Value& value(uint32_t id) const { return values_[id]; }

 private:
  using Key = std::tuple<Kind, DType, ScalarOp, uint32_t, uint32_t, uint32_t, uint64_t, int64_t>;
  static Key key(const Value& value);
  std::vector<Value>& values_;
  std::map<Key, uint32_t> known_;
};

// Operands of the functions below: a number that becomes a constant of the other operand's type.
struct Number {
  template <std::floating_point T>
  Number(T value) : value(value) {}  // NOLINT(google-explicit-constructor)
  double value;
};
struct Whole {
  template <std::integral T>
  Whole(T value) : value(value) {}  // NOLINT(google-explicit-constructor)
  int64_t value;
};

Term operator-(Term a);
Term operator+(Term a, Term b);
Term operator-(Term a, Term b);
Term operator*(Term a, Term b);
Term operator/(Term a, Term b);
Term operator+(Term a, Number b);
Term operator-(Term a, Number b);
Term operator-(Number a, Term b);
Term operator*(Term a, Number b);
Term operator/(Number a, Term b);

Term operator==(Term a, Term b);
Term operator!=(Term a, Term b);
Term operator<(Term a, Term b);
Term operator<=(Term a, Term b);
Term operator>(Term a, Term b);
Term operator>=(Term a, Term b);
Term operator==(Term a, Number b);
Term operator!=(Term a, Number b);
Term operator<(Term a, Number b);
Term operator<=(Term a, Number b);
Term operator>(Term a, Number b);
Term operator>=(Term a, Number b);

// Of bools.
Term operator&&(Term a, Term b);
Term operator||(Term a, Term b);
Term operator!(Term a);

// Of integers.
Term operator&(Term a, Whole b);
Term operator|(Term a, Term b);
Term operator^(Term a, Term b);
Term operator<<(Term a, Whole b);
Term operator>>(Term a, Whole b);
Term operator+(Term a, Whole b);
Term operator-(Term a, Whole b);
Term operator-(Whole a, Term b);
Term operator==(Term a, Whole b);
Term operator!=(Term a, Whole b);
Term operator<(Term a, Whole b);

Term fma(Term a, Term b, Term c);
Term fma(Term a, Number b, Term c);
Term fma(Term a, Term b, Number c);
Term fma(Term a, Number b, Number c);
Term ldexp(Term a, Term b);  // a * 2^b
Term where(Term condition, Term b, Term c);
Term where(Term condition, Number b, Term c);
Term where(Term condition, Term b, Number c);
Term where(Term condition, DType type, double b, double c);
Term abs(Term a);
Term sqrt(Term a);
Term round(Term a);
Term trunc(Term a);
Term floor(Term a);
Term copysign(Term a, Term b);
Term max(Term a, Term b);
Term min(Term a, Term b);
// As one machine instruction; NaN stays NaN.
Term at_most(Term a, double bound);
Term at_least(Term a, double bound);

// c[0] + x (c[1] + x (c[2] + ...)).
Term polynomial(std::span<const double> coefficients, Term x);
// first + x (c[0] + x (c[1] + ...)).
Term polynomial(double first, std::span<const double> coefficients, Term x);

// A number as the unevaluated sum of two: `low` is at most half a unit in the last place of `high`.
struct Pair {
  Term high, low;
};
// Exact (Dekker; Knuth): a + b for |a| >= |b|, for any, a * b.
Pair quick_sum(Term a, Term b);
Pair exact_sum(Term a, Term b);
Pair exact_product(Term a, Term b);
// To about twice the precision of the type.
Pair multiply(Pair a, Pair b);
Pair add(Pair a, Pair b);  // |a| >= |b|

// What differs between formats. Functions of f32 that would need pairs are computed in f64 with polynomials that are
// only as good as f32 needs (`kMiddle`), and rounded at the end.
enum class Precision : uint8_t { kSingle, kMiddle, kDouble };

struct Format {
  Precision precision;
  DType type;     // f32 or f64
  DType integer;  // of the same width
  int mantissa;   // bits after the point: 23, 52
  int bias;       // of the exponent: 127, 1023
  double magic;   // 1.5 * 2^mantissa: adding it rounds to an integer, which stands in the low bits of the sum
  double least;   // smallest normal number
};

inline bool is_single(const Format& format) { return format.type == DType::kFloat32; }
const Format& single_format();
const Format& middle_format();
const Format& double_format();

std::span<const double> pick(const Format& format, std::span<const double> single, std::span<const double> middle,
                             std::span<const double> wide);

// An integer and a fraction: x is about k + f. `sum` has k in its low bits.
struct Split {
  Term sum, whole;
};
// `scale` * x, rounded to the nearest integer, plus `offset` in the low bits of `sum` (|result| < 2^(mantissa - 2)).
Split split(const Format& format, Term x, double scale, int offset);
// 2 to the number in the low bits of `sum`, which holds the bias already.
Term power_of_two(const Format& format, Term sum);
// value * 2^exponent is e^x; of x in the range where that is neither 0 nor infinite, or a little beyond.
struct Scaled {
  Term value, exponent;
};
Scaled scaled_exp(const Format& format, Term x);
// x where |x| < bound: where a formula loses the sign of 0 or bits of tiny numbers.
Term unless_tiny(Term x, double bound, Term result);

// -- Functions; x has the type of the format ------------------------------------------------------------------------

Term exp(const Format& format, Term x);
Term exp2(const Format& format, Term x);
// 2^(high + low), |low| small.
Term exp2(const Format& format, Pair x);
Term expm1(const Format& format, Term x);
Term sigmoid_single(const Format& format, Term x);
Term sigmoid(const Format& format, Term x);
Term tanh(const Format& format, Term x);
Term sinh(const Format& format, Term x);
Term cosh(const Format& format, Term x);

Term log(const Format& format, Term x);
// Of positive finite x, in f64; both parts may be as large.
Pair long_log(const Format& format, Term x);
Term log1p(const Format& format, Term x);
// log(exp(x) + exp(y)).
Term log_add_exp(const Format& format, Term x, Term y);
Term log2(const Format& format, Term x);
Term log10(const Format& format, Term x);
Term asinh(const Format& format, Term x);
Term acosh(const Format& format, Term x);
Term atanh(const Format& format, Term x);
Term pow(const Format& format, Term x, Term y);

Term erf_single(const Format& format, Term x);
Term erf(const Format& format, Term x);
Term erfc(const Format& format, Term x);
Term lgamma(const Format& format, Term x);

Term sin(const Format& format, Term x);
Term cos(const Format& format, Term x);
Term tan(const Format& format, Term x);
Term asin(const Format& format, Term x);
Term acos(const Format& format, Term x);
Term atan(const Format& format, Term x);
Term atan2(const Format& format, Term y, Term x);

Term hypot(const Format& format, Term x, Term y);
Term fmod(const Format& format, Term x, Term y);
// What follows from rest = fmod(x, y).
Term remainder_from(Term rest, Term y);
Term floor_div_from(Term rest, Term x, Term y);

// Of integers.
Term whole_fmod(Term a, Term b);
Term whole_remainder(Term a, Term b);
Term whole_floor_div(Term a, Term b);
Term whole_pow(Term a, Term b);
Term whole_power(Term a, uint64_t exponent);

}  // namespace torch_remote::codegen::functions
