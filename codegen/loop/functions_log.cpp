#include <limits>

#include "codegen/loop/function_tables.h"
#include "codegen/loop/functions.h"

// The logarithm, and functions that use it. We split x = 2^e m with sqrt(1/2) <= m < sqrt(2). In f32, log(m) is a
// polynomial of m - 1. In f64 it is a polynomial of (m - 1) / (m + 1), as in Tang, Table-driven implementation of the
// logarithm function, 1990, but without the table.
namespace torch_remote::codegen::functions {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// A constant as the sum of two numbers of the format.
struct Constant {
  double high, low;
};
Constant log2_e(const Format& format) {
  return is_single(format) ? Constant{0x1.715476p+0, 0x1.4ae0cp-26}
                           : Constant{0x1.71547652b82fep+0, 0x1.777d0ffda0d24p-56};
}
Constant log10_e(const Format& format) {
  return is_single(format) ? Constant{0x1.bcb7b2p-2, -0x1.5b235ep-27}
                           : Constant{0x1.bcb7b1526e50ep-2, 0x1.95355baaafad3p-57};
}
// The product of `high` and an exponent is exact.
Constant ln_2(const Format& format) {
  return is_single(format) ? Constant{0x1.62e4p-1, 0x1.7f7d1cp-20} : Constant{0x1.62e42fefap-1, 0x1.cf79abc9e3b3ap-40};
}
Constant log10_2(const Format& format) {
  return is_single(format) ? Constant{0x1.344p-2, 0x1.3509f8p-18} : Constant{0x1.34413509ep-2, 0x1.79fef311f12b3p-38};
}

// A number x as 2^exponent (1 + f).
struct Parts {
  Term exponent;  // as a floating-point number
  Term f;
  Term bits;  // the exponent as an integer, shifted to the exponent field of the format
};

Term as_number(const Format& format, Term integer) {
  if (is_single(format)) return integer.as(format.type);
  // Not every machine converts 64-bit integers to f64.
  const auto magic = static_cast<int64_t>(0x4338000000000000);  // the bits of 1.5 * 2^52
  return (integer + magic).bits(format.type) - format.magic;
}

// Splits a positive x. If `denormal`, x may be denormal, and such numbers are scaled up first.
Parts parts_of(const Format& format, Term x, bool denormal) {
  const bool single = is_single(format);
  const int64_t root = single ? 0x3f3504f3 : 0x3fe6a09e667f3bcd;  // the bits of sqrt(1/2)
  Term scaled = x;
  Term tiny;
  if (denormal) {
    tiny = x < format.least;
    scaled = where(tiny, x * (single ? 0x1p32 : 0x1p64), x);
  }
  const Term bits = scaled.bits(format.integer);
  Term exponent = (bits - root) >> format.mantissa;
  const Term shifted = exponent << format.mantissa;
  if (denormal) exponent = where(tiny, exponent - (single ? 32 : 64), exponent);
  return {as_number(format, exponent), (bits - shifted).bits(format.type) - 1.0, shifted};
}

// Returns log(1 + f) - f.
Term log1p_less(const Format& format, Term f) {
  using namespace tables;
  if (is_single(format)) {
    const Term square = f * f;
    return square * fma(polynomial(kLog32, f), f, -0.5);
  }
  const Term s = f / (f + 2.0);
  const Term z = s * s;
  const Term half_square = f * f * 0.5;
  const auto q = select_coefficients(format, {}, kLogMid, kLog64);
  // 2 s = f - s f, and s f = f^2 / 2 - s f^2 / 2.
  return fma(s, fma(z, polynomial(q, z), half_square), -half_square);
}

// Adds the special cases of logarithms. `result` is right for positive finite x.
Term with_limits(Term x, Term result) {
  const Term other = where(x == 0.0, -kInfinity, where(x < 0.0, kNan, x));
  return where((x > 0.0) && (x < kInfinity), result, other);
}

Term natural(const Format& format, const Parts& parts) {
  const Constant ln2 = ln_2(format);
  const Term rest = fma(parts.exponent, ln2.low, log1p_less(format, parts.f));
  return fma(parts.exponent, ln2.high, parts.f + rest);
}

// Returns exponent * unit + log(1 + f) * factor. The product of `unit.high` and an exponent must be exact.
Term to_base(const Format& format, const Parts& parts, Constant unit, Constant factor) {
  const Pair log = quick_sum(parts.f, log1p_less(format, parts.f));
  const Pair product = exact_product(log.high, log.high.constant(factor.high));
  const Term low = fma(log.low, factor.high, fma(log.high, factor.low, product.low));
  const Pair sum = quick_sum(parts.exponent * unit.high, product.high);
  const Term below = unit.low == 0 ? low : fma(parts.exponent, unit.low, low);
  return sum.high + (sum.low + below);
}

// Splits 1 + x = 2^e (1 + f); f retains the bits of x that 1 + x loses.
Parts parts_of_successor(const Format& format, Term x) {
  const Term sum = x + 1.0;
  Parts parts = parts_of(format, sum, false);
  const int64_t one = is_single(format) ? 0x3f800000 : 0x3ff0000000000000;
  const Term factor = (one - parts.bits).bits(format.type);
  // For large x the factor may be out of range, but the 1 does not matter there.
  parts.f = where(x > (is_single(format) ? 0x1p26 : 0x1p55), parts.f, fma(x, factor, factor - 1.0));
  return parts;
}

// Returns log(1 + x.high + x.low), including the effect of the low part, plus ln 2 where `twice` is true.
Term log1p_of(const Format& format, Pair x, Term twice) {
  Parts parts = parts_of_successor(format, x.high);
  const int64_t one = 0x3ff0000000000000;
  const Term factor = where(x.high > 0x1p55, 0.0, (one - parts.bits).bits(format.type));
  // log(1 + f + d) is about log(1 + f) + d / (1 + f), and s^2 is close enough to 1 / (1 + f).
  const Term s = 1.0 - parts.f / (parts.f + 2.0);
  const Term low = x.low * factor * s * s;
  if (twice.builder != nullptr) parts.exponent = where(twice, parts.exponent + 1.0, parts.exponent);
  const Constant ln2 = ln_2(format);
  const Pair head = exact_sum(parts.exponent * ln2.high, parts.f);
  const Term rest = fma(parts.exponent, ln2.low, log1p_less(format, parts.f) + low);
  return with_limits(x.high + 1.0, head.high + (head.low + rest));
}

// Returns sqrt(x.high + x.low) for x >= 0.
Pair square_root(Pair x) {
  const Term root = sqrt(x.high);
  const Term low = (fma(-root, root, x.high) + x.low) / (root + root);
  return {root, where(root == 0.0, 0.0, low)};
}

}  // namespace

Pair long_log(const Format& format, Term x) {
  const Parts parts = parts_of(format, x, true);
  const Constant ln2 = ln_2(format);
  const Pair head = exact_sum(parts.exponent * ln2.high, parts.f);
  return {head.high, head.low + fma(parts.exponent, ln2.low, log1p_less(format, parts.f))};
}

Term log(const Format& format, Term x) { return with_limits(x, natural(format, parts_of(format, x, true))); }

Term log1p(const Format& format, Term x) {
  const Term result = with_limits(x + 1.0, natural(format, parts_of_successor(format, x)));
  return passthrough_tiny(x, is_single(format) ? 0x1p-25 : 0x1p-54, result);
}

Term log_add_exp(const Format& format, Term x, Term y) {
  const Term most = max(x, y), least = min(x, y);
  return where(least == most && abs(least) == kInfinity, least, log1p(format, exp(format, least - most)) + most);
}

Term log2(const Format& format, Term x) {
  return with_limits(x, to_base(format, parts_of(format, x, true), {1, 0}, log2_e(format)));
}

Term log10(const Format& format, Term x) {
  return with_limits(x, to_base(format, parts_of(format, x, true), log10_2(format), log10_e(format)));
}

// log(a + sqrt(a^2 + 1)), in terms of log1p because of small a. f64 uses pairs; above 2^30 the result is log(2 a).
Term asinh(const Format& format, Term x) {
  const Term a = abs(x);
  if (format.precision == Precision::kDoubleForSingle) {
    const Term square = a * a;
    const Term argument = a + square / (sqrt(square + 1.0) + 1.0);
    return copysign(log1p(format, where(a < kInfinity, argument, a)), x);
  }
  const Term large = a > 0x1p30;
  const Pair square = exact_product(a, a);
  const Pair sum = exact_sum(square.high, a.constant(1));
  const Pair root = square_root({sum.high, sum.low + square.low});
  const Pair argument = exact_sum(a, root.high - 1.0);
  const Term result =
      log1p_of(format, {where(large, a - 1.0, argument.high), where(large, 0.0, argument.low + root.low)}, large);
  return copysign(passthrough_tiny(a, 0x1p-28, result), x);
}

// log(x + sqrt(x^2 - 1)).
Term acosh(const Format& format, Term x) {
  const Term less = x - 1.0;
  if (format.precision == Precision::kDoubleForSingle) {
    return where(x < 1.0, kNan, log1p(format, less + sqrt(less * (x + 1.0))));
  }
  const Term large = x > 0x1p30;
  const Pair square = exact_product(x, x);
  const Pair difference = exact_sum(square.high, x.constant(-1));
  const Pair root = square_root(quick_sum(difference.high, difference.low + square.low));
  const Pair argument = exact_sum(less, root.high);
  const Term result =
      log1p_of(format, {where(large, less, argument.high), where(large, 0.0, argument.low + root.low)}, large);
  return where(x < 1.0, kNan, result);
}

// log((1 + a) / (1 - a)) / 2 = log1p(2 a / (1 - a)) / 2.
Term atanh(const Format& format, Term x) {
  const Term a = abs(x);
  const Term twice = a + a;
  if (format.precision == Precision::kDoubleForSingle) return copysign(log1p(format, twice / (1.0 - a)) * 0.5, x);
  const Pair below = exact_sum(a.constant(1), -a);
  const Term quotient = twice / below.high;
  const Term low = (fma(-quotient, below.high, twice) - quotient * below.low) / below.high;
  const Term result = log1p_of(format, {quotient, low}, {}) * 0.5;
  return copysign(passthrough_tiny(a, 0x1p-28, result), x);
}

// -- pow -------------------------------------------------------------------------------------------------------------

namespace {

// Returns log2(m 2^e) as a pair with a relative error of about 2^-66: 2 s + 2/3 s^3 + s^5 q(s^2), with s = f / (2 + f).
Pair long_log2(const Format& format, const Parts& parts) {
  using namespace tables;
  const Term f = parts.f;
  const Pair below = quick_sum(f.constant(2), f);
  const Term inverse = 1.0 / below.high;
  const Term quotient = f * inverse;
  const Pair s = quick_sum(quotient, (fma(-quotient, below.high, f) - quotient * below.low) * inverse);
  const Pair z = multiply(s, s);
  const Term tail = fma(z.high, polynomial(kLogLong, z.high), 0x1.5555555555555p-55);
  const Pair inner = quick_sum(f.constant(0x1.5555555555555p-1), tail);
  const Pair cubic = multiply(s, multiply(z, inner));
  const Pair log = add({s.high + s.high, s.low + s.low}, cubic);
  const Constant factor = log2_e(format);
  const Pair scaled = multiply(log, {f.constant(factor.high), f.constant(factor.low)});
  // The exponent is 0, or its magnitude is not below that of log2(m).
  const Pair sum = exact_sum(parts.exponent, scaled.high);
  return quick_sum(sum.high, sum.low + scaled.low);
}

// Returns a^y for a = |x|. The special cases are limited to 0 and infinity.
Term power_of_magnitude(const Format& format, Term a, Term y) {
  const Parts parts = parts_of(format, a, format.precision == Precision::kDouble);
  const Term regular = (a > 0.0) && (a < kInfinity);
  const Term limit = where(a == 0.0, -kInfinity, a);
  if (format.precision == Precision::kDoubleForSingle) {
    const Term log = to_base(format, parts, {1, 0}, log2_e(format));
    return exp2(format, y * where(regular, log, limit));
  }
  const Pair log = long_log2(format, parts);
  const Term high = where(regular, log.high, limit);
  const Term product = y * high;
  const Term low = fma(y, log.low, fma(y, high, -product));
  return exp2(format, Pair{product, where(abs(product) < 2000.0, low, 0.0)});
}

}  // namespace

// 2^(y log2 |x|), with the sign and with the special cases of C's Annex F.
Term pow(const Format& format, Term x, Term y) {
  const Term a = abs(x);
  const Term magnitude = where((a == 1.0) && (y == y), 1.0, power_of_magnitude(format, a, y));
  const Term whole = trunc(y) == y;
  const Term half = y * 0.5;
  const Term odd = whole && (trunc(half) != half);
  const Term not_real = (x < 0.0) && (a < kInfinity) && !whole;
  const Term result = where(not_real, kNan, where(odd, copysign(magnitude, x), magnitude));
  return where((x == 1.0) || (y == 0.0), 1.0, result);
}

}  // namespace torch_remote::codegen::functions
