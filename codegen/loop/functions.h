#pragma once

#include <concepts>
#include <cstdint>
#include <map>
#include <span>
#include <tuple>
#include <vector>

#include "codegen/loop/loop_ir.h"

// Internal to expand_functions: expresses elementary functions as values of a kernel.
namespace torch_remote::codegen::functions {

using ir::DType;
using ir::ScalarOp;

class Builder;

// A value in an expression. Operators on terms append values to the builder. A number as the other operand becomes a
// constant of the term's type.
struct Term {
  Builder* builder = nullptr;
  uint32_t id = kNone;

  DType type() const;
  Term constant(double number) const;           // of this term's type, which is a floating-point type
  Term integer_constant(int64_t number) const;  // of this term's type, which is an integer type
  Term as(DType type) const;                    // converted
  Term bits(DType type) const;                  // the same bits as a value of another type of this width
};

// Appends values to a kernel. Equal values are appended only once.
class Builder {
 public:
  explicit Builder(std::vector<Value>& values) : values_(values) {}

  // Appends a value, or finds an equal one. Its operands must be in the builder already.
  Term make(const Value& value);
  // Copies a value from the kernel that expand_functions rewrites. Appends it even if an equal value exists.
  uint32_t append(const Value& value);
  // A comparison results in a bool. `where` results in the type of `b`, and any other op in the type of `a`.
  Term op(ScalarOp op, Term a, Term b = {}, Term c = {});
  Term constant(DType type, double number);
  Term integer_constant(DType type, int64_t number);
  Term term(uint32_t id) { return {this, id}; }
  const Value& value(uint32_t id) const { return values_[id]; }

 private:
  using Key = std::tuple<Kind, DType, ScalarOp, uint32_t, uint32_t, uint32_t, uint64_t, int64_t>;
  static Key key(const Value& value);
  std::vector<Value>& values_;
  std::map<Key, uint32_t> known_;
};

// Operands of the functions below: a number that becomes a constant of the other operand's type.
struct FloatOperand {
  template <std::floating_point T>
  FloatOperand(T value) : value(value) {}  // NOLINT(google-explicit-constructor)
  double value;
};
struct IntegerOperand {
  template <std::integral T>
  IntegerOperand(T value) : value(value) {}  // NOLINT(google-explicit-constructor)
  int64_t value;
};

Term operator-(Term a);
Term operator+(Term a, Term b);
Term operator-(Term a, Term b);
Term operator*(Term a, Term b);
Term operator/(Term a, Term b);
Term operator+(Term a, FloatOperand b);
Term operator-(Term a, FloatOperand b);
Term operator-(FloatOperand a, Term b);
Term operator*(Term a, FloatOperand b);
Term operator/(FloatOperand a, Term b);

Term operator==(Term a, Term b);
Term operator!=(Term a, Term b);
Term operator<(Term a, Term b);
Term operator<=(Term a, Term b);
Term operator>(Term a, Term b);
Term operator>=(Term a, Term b);
Term operator==(Term a, FloatOperand b);
Term operator!=(Term a, FloatOperand b);
Term operator<(Term a, FloatOperand b);
Term operator<=(Term a, FloatOperand b);
Term operator>(Term a, FloatOperand b);
Term operator>=(Term a, FloatOperand b);

// For bools.
Term operator&&(Term a, Term b);
Term operator||(Term a, Term b);
Term operator!(Term a);

// For integers.
Term operator&(Term a, IntegerOperand b);
Term operator|(Term a, Term b);
Term operator^(Term a, Term b);
Term operator<<(Term a, IntegerOperand b);
Term operator>>(Term a, IntegerOperand b);
Term operator+(Term a, IntegerOperand b);
Term operator-(Term a, IntegerOperand b);
Term operator-(IntegerOperand a, Term b);
Term operator==(Term a, IntegerOperand b);
Term operator!=(Term a, IntegerOperand b);
Term operator<(Term a, IntegerOperand b);

Term fma(Term a, Term b, Term c);
Term fma(Term a, FloatOperand b, Term c);
Term fma(Term a, Term b, FloatOperand c);
Term fma(Term a, FloatOperand b, FloatOperand c);
Term ldexp(Term a, Term b);  // a * 2^b; b is an integer, as a number of a's type (see Kind::kLdexp)
Term where(Term condition, Term b, Term c);
Term where(Term condition, FloatOperand b, Term c);
Term where(Term condition, Term b, FloatOperand c);
Term where(Term condition, DType type, double b, double c);
Term abs(Term a);
Term sqrt(Term a);
Term round(Term a);  // to the nearest integer; halves to the even one
Term trunc(Term a);
Term floor(Term a);
Term copysign(Term a, Term b);
Term max(Term a, Term b);
Term min(Term a, Term b);
// The smaller, or the larger, of `a` and `bound`; NaN if a is NaN. Each becomes one machine instruction.
Term clamp_max(Term a, double bound);
Term clamp_min(Term a, double bound);

// c[0] + x (c[1] + x (c[2] + ...)).
Term polynomial(std::span<const double> coefficients, Term x);
// first + x (c[0] + x (c[1] + ...)).
Term polynomial(double first, std::span<const double> coefficients, Term x);

// The unevaluated sum of two numbers. Unless a function says otherwise, `low` is at most half a unit in the last place
// of `high`.
struct Pair {
  Term high, low;
};
// Exact operations (Dekker; Knuth). quick_sum is a + b for |a| >= |b|, exact_sum is a + b for any numbers,
// exact_product is a * b.
Pair quick_sum(Term a, Term b);
Pair exact_sum(Term a, Term b);
Pair exact_product(Term a, Term b);
// Operations with about twice the precision of the type.
Pair multiply(Pair a, Pair b);
Pair add(Pair a, Pair b);  // |a| >= |b|

// The type in which a function is computed, and its accuracy. kSingle computes f32 functions in f32, and kDouble
// computes f64 functions in f64. kDoubleForSingle computes in f64 those f32 functions that would need pairs in f32. The
// caller rounds their results to f32, so their polynomials are only as accurate as f32 needs.
enum class Precision : uint8_t { kSingle, kDoubleForSingle, kDouble };

struct Format {
  Precision precision;
  DType type;     // f32 or f64
  DType integer;  // has the same width
  int mantissa;   // bits after the binary point: 23, 52
  int bias;       // of the exponent field: 127, 1023
  double magic;   // 1.5 * 2^mantissa: adding it rounds to an integer, which is in the low bits of the sum
  double least;   // the smallest normal number
};

inline bool is_single(const Format& format) { return format.type == DType::kFloat32; }
const Format& single_format();
const Format& double_for_single_format();
const Format& double_format();

// `single` for kSingle, `middle` for kDoubleForSingle, `wide` for kDouble.
std::span<const double> select_coefficients(const Format& format, std::span<const double> single,
                                            std::span<const double> middle, std::span<const double> wide);

// The result of split().
struct Split {
  Term sum, integer;
};
// Rounds `scale` * x to the nearest integer n. `integer` is n as a number of x's type. The low bits of `sum` contain
// n + `offset`, whose absolute value must be less than 2^(mantissa - 2).
Split split(const Format& format, Term x, double scale, int offset);
// 2^n, where the low bits of `sum` contain n + bias (Format::bias).
Term power_of_two(const Format& format, Term sum);
// e^x as value * 2^exponent. The caller must bound x: e^x may be slightly too small or too large for the format, but
// not more.
struct Scaled {
  Term value, exponent;
};
Scaled scaled_exp(const Format& format, Term x);
// x where |x| < bound, else `result`. Needed where a formula loses the sign of 0 or bits of tiny numbers.
Term passthrough_tiny(Term x, double bound, Term result);

// -- Functions; x has the type of the format --------------------------------------------------------------------------

// These functions do not accept single_format(): sigmoid, asinh, acosh, atanh, pow, erf, erfc, lgamma, tan, hypot and
// fmod. sigmoid_single() and erf_single() require it. For f32 arguments, the others are computed with
// double_for_single_format().

Term exp(const Format& format, Term x);
Term exp2(const Format& format, Term x);
// 2^(high + low), where |low| is small.
Term exp2(const Format& format, Pair x);
Term expm1(const Format& format, Term x);
Term sigmoid_single(const Format& format, Term x);
Term sigmoid(const Format& format, Term x);
Term tanh(const Format& format, Term x);
Term sinh(const Format& format, Term x);
Term cosh(const Format& format, Term x);

Term log(const Format& format, Term x);
// The logarithm of a positive finite x, in f64, as a sum whose parts may be of similar size.
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
// torch's remainder and floor division of floats, given rest = fmod(x, y).
Term remainder_from(Term rest, Term y);
Term floor_div_from(Term rest, Term x, Term y);

// For integers. The quotient of a division by zero is 0.
Term int_fmod(Term a, Term b);
Term int_remainder(Term a, Term b);
Term int_floor_div(Term a, Term b);
Term int_pow(Term a, Term b);               // for a negative b: 0, except for 1 and -1
Term int_power(Term a, uint64_t exponent);  // the same for an exponent that is a constant

}  // namespace torch_remote::codegen::functions
