#include <limits>

#include "codegen/loop/function_tables.h"
#include "codegen/loop/functions.h"

// erf, erfc, lgamma. The f32 erf, which is used in inner loops, is in functions_exp.cpp.
namespace torch_remote::codegen::functions {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// For a >= 0, erfc(a) is exp(-a^2) t q(t) with t = k / (k + a). See Shepherd and Laframboise, Chebyshev approximation
// of (1 + 2x) exp(x^2) erfc(x), 1981, which has another t.
Term erfc_middle(const Format& format, Term a) {
  const Term t = 3.0 / (a + 3.0);
  const Scaled e = scaled_exp(format, -(a * a));
  return ldexp(polynomial(tables::kErfcMid, fma(t, 2.0, -1.0)) * t * e.value, e.exponent);
}

// e^(high + low), as a pair times 2^exponent.
struct LongScaled {
  Pair value;
  Term exponent;
};
LongScaled long_exp(const Format& format, Pair x) {
  const Split n = split(format, x.high, 0x1.71547652b82fep+0, 0);
  const Term high = fma(n.integer, -0x1.62e42fefap-1, x.high);  // exact
  const Pair r = exact_sum(high, fma(n.integer, -0x1.cf79abc9e3b3ap-40, x.low));
  const Pair less = quick_sum(r.high, r.high * r.high * polynomial(tables::kExp64, r.high));
  const Pair e = quick_sum(r.high.constant(1), less.high);
  return {{e.high, fma(r.low, e.high, e.low + less.low)}, n.integer};
}

// The quotient t, the square and the exponential are pairs. The rounding error of t acts like a change of a. For it we
// use the derivative of g(a) = exp(a^2) erfc(a), which is 2 a g(a) - 2 / sqrt(pi).
Term erfc_double(const Format& format, Term a) {
  const Pair below = exact_sum(a.constant(4), a);
  const Term t = 4.0 / below.high;
  const Term t_low = fma(-t, below.high, 4.0) - t * below.low;  // times 4 / t
  const std::span<const double> table = tables::kErfc64;        // the first coefficient has two parts
  const Term rest = polynomial(table.subspan(1), fma(t, 2.0, -1.0));
  const Pair q = quick_sum(t.constant(table[0]), rest);
  const Pair product = exact_product(t, q.high);
  const Pair g{product.high, fma(t, q.low, product.low)};
  const Term slope = fma(a + a, g.high, -0x1.20dd750429b6dp+0);
  const Term g_low = fma(below.high * t_low * -0.25, slope, g.low);
  const Pair square = exact_product(a, a);
  const LongScaled e = long_exp(format, {-square.high, -square.low});
  return ldexp(multiply(e.value, {g.high, g_low}).high, e.exponent);
}

// log |gamma(a)| for a > 0. Near 1 and 2 we use polynomials with zeros there. Below 0.5, log(a) is subtracted. Up to 8,
// the logarithm of (a - 1) (a - 2) ... is added. From 8 on we use Stirling's series.
Term lgamma_of_positive(const Format& format, Term a) {
  using namespace tables;
  const Term low = a < 0.5, large = a >= 8.0;
  Term near = a;
  Term product = a.constant(1);
  for (int k = 1; k <= 6; ++k) {
    const Term less = a - static_cast<double>(k);
    const Term is_less = less >= 1.4;
    near = where(is_less, less, near);
    product = where(is_less, product * less, product);
  }
  const Term from1 = where(low, a, near - 1.0), from2 = where(low, a - 1.0, near - 2.0);
  const Term around =
      where(from1 < 0.4, from1 * polynomial(select_coefficients(format, {}, kLgamma1_Mid, kLgamma1_64), from1),
            from2 * polynomial(select_coefficients(format, {}, kLgamma2_Mid, kLgamma2_64), from2));
  const Pair logarithm = long_log(format, where(low || large, a, product));
  const Term inverse = 1.0 / a;
  const Term series = fma(inverse, polynomial(kStirling, inverse * inverse), 0x1.acfe390c97d69p-2);
  const Term stirling = fma(a - 0.5, logarithm.high + logarithm.low - 1.0, series);
  const Pair sum = exact_sum(around, where(low, -logarithm.high, logarithm.high));
  const Term small = sum.high + (sum.low + where(low, -logarithm.low, logarithm.low));
  return where(large, stirling, where(a == 0.0, kInfinity, small));
}

}  // namespace

Term erfc(const Format& format, Term x) {
  const bool middle = format.precision == Precision::kDoubleForSingle;
  const Term a = clamp_max(abs(x), middle ? 11.0 : 28.0);
  const Term result = middle ? erfc_middle(format, a) : erfc_double(format, a);
  return where(x < 0.0, 2.0 - result, result);
}

Term erf(const Format& format, Term x) {
  const Term a = clamp_max(abs(x), 28.0);
  const Term small = fma(a, polynomial(tables::kErf64, a * a), a);
  return copysign(where(a < 1.0, small, 1.0 - erfc_double(format, a)), x);
}

// For negative x: gamma(-a) gamma(a) = -pi / (a sin(pi a)).
Term lgamma(const Format& format, Term x) {
  const Term a = abs(x);
  const Term positive = lgamma_of_positive(format, a);
  const Term fraction = a - round(a);
  const Term sine = abs(fraction * polynomial(tables::kSinPi, fraction * fraction));
  const Term reflected = -(log(format, a * sine * 0x1.45f306dc9c883p-2) + positive);
  const Term negative = where(a < 0x1p-60, positive, where(sine == 0.0, kInfinity, reflected));
  return where(a < kInfinity, where(x < 0.0, negative, positive), a);
}

}  // namespace torch_remote::codegen::functions
