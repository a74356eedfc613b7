#include <limits>

#include "codegen/loop/functions.h"

// Remainders, hypot, and integer powers.
namespace torch_remote::codegen::functions {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Subtracts n b from a, with n near a / b, `steps` times. |result| <= |b| / 2 if |a / b| < 2^(52 steps). No difference
// has more bits than b, so all of them are exact.
Term reduced(Term a, Term b, int steps) {
  for (int i = 0; i < steps; ++i) a = fma(-round(a / b), b, a);
  return a;
}

// f32 arguments in f64, where 1 / b is not denormal and accurate enough: each step removes 51 of 277 bits.
Term fmod_of_single(Term a, Term b) {
  const Term inverse = 1.0 / b;
  for (int i = 0; i < 6; ++i) a = fma(-round(a * inverse), b, a);
  return a;
}

// a / b may overflow, so multiples of a scaled-up b are subtracted first.
Term fmod_of_double(Term a, Term b) {
  const Term tiny = b < 0x1p-50;
  const Term half_up = where(tiny, b * 0x1p537, b);
  const Term up = where(tiny, half_up * 0x1p537, where(b < 1.0, b * 0x1p50, b));
  return reduced(reduced(reduced(a, up, 20), half_up, 11), b, 11);
}

Term is_negative(Term a) { return a < 0; }

}  // namespace

Term fmod(const Format& format, Term x, Term y) {
  const Term a = abs(x), b = abs(y);
  const Term rest = format.precision == Precision::kDoubleForSingle ? fmod_of_single(a, b) : fmod_of_double(a, b);
  const Term positive = where(rest < 0.0, rest + b, rest);
  return copysign(where((b == kInfinity) && (a < kInfinity), a, positive), x);
}

Term hypot(const Format& format, Term x, Term y) {
  const Term a = abs(x), b = abs(y);
  const Term infinite = (a == kInfinity) || (b == kInfinity);
  if (format.precision == Precision::kDoubleForSingle) return where(infinite, kInfinity, sqrt(fma(x, x, y * y)));
  const Term most = max(a, b), least = min(a, b);
  const Term large = most > 0x1p500, small = most < 0x1p-500;
  const Term factor = where(large, 0x1p-600, where(small, x.type(), 0x1p600, 1.0));
  const Term back = where(large, 0x1p600, where(small, x.type(), 0x1p-600, 1.0));
  const Term scaled = most * factor, other = least * factor;
  return where(infinite, kInfinity, sqrt(fma(scaled, scaled, other * other)) * back);
}

Term remainder_from(Term rest, Term y) { return where((rest != 0.0) && ((rest < 0.0) != (y < 0.0)), rest + y, rest); }

// The algorithm is that of CPython.
Term floor_div_from(Term rest, Term x, Term y) {
  const Term down = (rest != 0.0) && ((rest < 0.0) != (y < 0.0));
  const Term quotient = (x - rest) / y;
  const Term lower = where(down, quotient - 1.0, quotient);
  const Term floored = floor(lower);
  const Term nearest = where(lower - floored > 0.5, floored + 1.0, floored);
  const Term ratio = x / y;
  return where(y == 0.0, ratio, where(lower == 0.0, copysign(x.constant(0), ratio), nearest));
}

// LoopIR's integer division by zero gives 0.
Term int_fmod(Term a, Term b) { return a - (a / b) * b; }

Term int_remainder(Term a, Term b) {
  const Term rest = int_fmod(a, b);
  return where((rest != 0) && (is_negative(rest) != is_negative(b)), rest + b, rest);
}

Term int_floor_div(Term a, Term b) {
  const Term quotient = a / b;
  const Term rest = a - quotient * b;
  return where((rest != 0) && (is_negative(a) != is_negative(b)), quotient - 1, quotient);
}

Term int_power(Term a, uint64_t exponent) {
  Term result = a.integer_constant(1);
  bool is_one = true;
  for (Term power = a; exponent != 0; exponent >>= 1) {
    if ((exponent & 1) != 0) result = is_one ? power : result * power;
    if ((exponent & 1) != 0) is_one = false;
    if (exponent != 1) power = power * power;
  }
  return result;
}

// In w bits, the 2^(w - 2)th power of an odd number is 1, so only w - 2 bits of the exponent matter. The wth power of
// an even number is 0.
Term int_pow(Term a, Term b) {
  const int width = 8 * static_cast<int>(ir::item_size(a.type()));
  Term result = a.integer_constant(1);
  Term power = a;
  for (int i = 0; i < width - 2; ++i) {
    const Term bit = (b & (int64_t{1} << i)) != 0;
    result = where(bit, result * power, result);
    power = power * power;
  }
  const Term zero = a.integer_constant(0), one = a.integer_constant(1);
  const Term is_even = (a & 1) == 0;
  result = where(is_even && (b > b.integer_constant(width - 1)), zero, result);
  if (a.type() == DType::kUInt8) return result;
  const Term minus_one = a.integer_constant(-1);
  const Term inverse = where(a == one, one, where(a == minus_one, where((b & 1) == 0, one, minus_one), zero));
  return where(is_negative(b), inverse, result);
}

}  // namespace torch_remote::codegen::functions
