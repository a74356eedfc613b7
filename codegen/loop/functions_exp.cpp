#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "codegen/loop/function_tables.h"
#include "codegen/loop/functions.h"

// exp, and functions that use it. A multiple of ln 2, which has two parts (Cody and Waite, Software Manual for the
// Elementary Functions, 1980), is subtracted from the argument. A polynomial takes the remainder.
namespace torch_remote::codegen::functions {
namespace {

constexpr double kLog2E = 0x1.71547652b82fep+0;

// ln 2 in two parts. The product of `high` and an exponent is exact.
struct Ln2 {
  double high, low;
};
constexpr Ln2 kLn2Single{0x1.62e4p-1, 0x1.7f7d1cp-20};
constexpr Ln2 kLn2Double{0x1.62e42fefap-1, 0x1.cf79abc9e3b3ap-40};

const Ln2& ln2(const Format& format) { return is_single(format) ? kLn2Single : kLn2Double; }

// x = n ln 2 + rest with |rest| <= ln 2 / 2. `half_power` is 2^(n - 1).
struct Reduced {
  Term half_power, rest;
};
Reduced reduce(const Format& format, Term x) {
  const Split n = split(format, x, kLog2E, format.bias - 1);
  const Ln2& parts = ln2(format);
  const Term rest = fma(n.integer, -parts.low, fma(n.integer, -parts.high, x));
  return {power_of_two(format, n.sum), rest};
}

// Returns e^r - 1 for |r| <= ln 2 / 2.
Term expm1_of_rest(const Format& format, Term r) {
  using namespace tables;
  const auto q = select_coefficients(format, kExpm1_32, kExpm1_64, kExpm1_64);
  return fma(r * r, polynomial(q, r), r);
}

}  // namespace

Split split(const Format& format, Term x, double scale, int offset) {
  const double magic = format.magic + offset;
  const Term sum = fma(x, scale, magic);
  return {sum, sum - magic};
}

Term power_of_two(const Format& format, Term sum) {
  return (sum.bits(format.integer) << format.mantissa).bits(format.type);
}

Scaled scaled_exp(const Format& format, Term x) {
  using namespace tables;
  const Split n = split(format, x, kLog2E, 0);
  const Ln2& parts = ln2(format);
  const Term r = fma(n.integer, -parts.low, fma(n.integer, -parts.high, x));
  const auto q = select_coefficients(format, kExp32, kExpMid, kExp64);
  return {fma(polynomial(1.0, q, r), r, 1.0), n.integer};
}

Term exp(const Format& format, Term x) {
  const auto [least, most] = is_single(format) ? std::pair(-104.0, 89.0) : std::pair(-746.0, 710.0);
  const Scaled e = scaled_exp(format, clamp_min(clamp_max(x, most), least));
  return ldexp(e.value, e.exponent);
}

Term exp2(const Format& format, Pair x) {
  using namespace tables;
  const auto [least, most] = is_single(format) ? std::pair(-151.0, 129.0) : std::pair(-1076.0, 1025.0);
  const Term high = clamp_min(clamp_max(x.high, most), least);
  const Term whole = round(high);
  Term r = high - whole;
  if (x.low.builder != nullptr) r = r + x.low;
  return ldexp(polynomial(1.0, select_coefficients(format, kExp2_32, kExp2Mid, kExp2_64), r), whole);
}

Term exp2(const Format& format, Term x) { return exp2(format, Pair{x, {}}); }

Term passthrough_tiny(Term x, double bound, Term result) { return where(abs(x) < bound, x, result); }

// 2^n (e^r - 1) + (2^n - 1). All terms are halved, so that 2^n does not overflow before the sum does.
Term expm1(const Format& format, Term x) {
  const auto [least, most] = is_single(format) ? std::pair(-25.0, 89.0) : std::pair(-40.0, 710.0);
  const Reduced n = reduce(format, clamp_min(clamp_max(x, most), least));
  const Term half = fma(n.half_power, expm1_of_rest(format, n.rest), n.half_power - 0.5);
  return passthrough_tiny(x, is_single(format) ? 0x1p-25 : 0x1p-54, half + half);
}

// f32, with 13 operations in addition to the division. With x = r - n ln 2, the result is e^r / (e^r + 2^n). Both are
// scaled by 2^-24, so that neither 2^150 nor 2^-150 is out of range, and denormal results are right. The error over all
// arguments is at most 2.41 ulp, as large as that of torch's 1 / (1 + exp(-x)).
Term sigmoid_single(const Format& format, Term x) {
  using namespace tables;
  constexpr int kDown = 24;
  const Term bounded = clamp_max(clamp_min(x, -104.0), 64.0);
  const Split n = split(format, bounded, -kLog2E, format.bias - kDown);
  const Term r = fma(n.integer, kLn2Single.low, fma(n.integer, kLn2Single.high, bounded));
  double scaled[2 + std::size(kExp32)] = {0x1p-24, 0x1p-24};
  std::transform(std::begin(kExp32), std::end(kExp32), scaled + 2, [](double c) { return c * 0x1p-24; });
  const Term power = polynomial(scaled, r);
  return power / (power_of_two(format, n.sum) + power);
}

// f64. With t = exp(-|x|) and q = t / (1 + t), the result is 1 - q, or t - t q for negative x. Nothing overflows, small
// results keep their precision, and errors of q count little.
Term sigmoid(const Format& format, Term x) {
  const Scaled e = scaled_exp(format, clamp_min(-abs(x), -746.0));
  const Term power = ldexp(e.value, e.exponent);
  const Term base = where(x < 0.0, power, 1.0);
  return fma(base, power / (-1.0 - power), base);
}

// A polynomial for |x| <= 0.55, else 1 - 2 / (exp(2|x|) + 1). The quotient is then at most a half, so its errors count
// little and one part of ln 2 is enough. In f32 the error is at most 1.6 ulp.
//
// One formula for all arguments is (1 - t) / (1 + t) with t = exp(-2|x|) and 1 - t by expm1. It has 20 operations
// instead of 26, but errors of 1.97 ulp near 1, where ours has little more than a half. With it, 1 - tanh^2 in the
// gradient of gelu would differ too much from torch's.
Term tanh(const Format& format, Term x) {
  using namespace tables;
  const bool single = is_single(format);
  const Term a = abs(x);
  const Term bounded = clamp_max(a, single ? 10.0 : 20.0);
  // r is half of the remainder, so the coefficient of each power r^k is multiplied by 2^k, which is exact.
  const Split n = split(format, bounded, 2 * kLog2E, format.bias);
  const Term r = fma(n.integer, single ? -0x1.62e43p-2 : -0x1.62e42fefa39efp-2, bounded);
  const auto q = select_coefficients(format, kExp32, kExp64, kExp64);
  std::vector<double> doubled = {1, 2};
  doubled.reserve(doubled.size() + q.size());
  double factor = 4;
  for (const double c : q) {
    doubled.push_back(c * factor);
    factor *= 2;
  }
  const Term large = -2.0 / fma(polynomial(doubled, r), power_of_two(format, n.sum), 1.0) + 1.0;
  const Term square = x * x;
  const Term small = fma(square * a, polynomial(select_coefficients(format, kTanh32, kTanh64, kTanh64), square), a);
  return copysign(where(a < 0.55, small, large), x);
}

namespace {

// Returns exp(a) / 2.
Term half_exp(const Format& format, Term a) {
  const Scaled e = scaled_exp(format, clamp_max(a, is_single(format) ? 90.0 : 711.0));
  return ldexp(e.value, e.exponent - 1.0);
}

}  // namespace

// A polynomial for |x| <= 1, else h - 1 / (4 h) with h = exp(|x|) / 2.
Term sinh(const Format& format, Term x) {
  using namespace tables;
  const Term a = abs(x);
  const Term h = half_exp(format, a);
  const Term square = x * x;
  const Term small = fma(square * a, polynomial(select_coefficients(format, kSinh32, kSinh64, kSinh64), square), a);
  return copysign(where(a <= 1.0, small, h - 0.25 / h), x);
}

Term cosh(const Format& format, Term x) {
  const Term h = half_exp(format, abs(x));
  return h + 0.25 / h;
}

// 1 - erfc(x) = -(exp(log(erfc(|x|))) - 1), where the logarithm is a polynomial: one formula for small and large |x|.
// The error over all arguments is at most 1.94 ulp.
//
// A quotient of polynomials, x P(x^2) / Q(x^2), has 16 operations instead of 25. But its error near 1 is 5 ulp, because
// each rounding of P and Q counts there, and some results exceed 1.
Term erf_single(const Format& format, Term x) {
  using namespace tables;
  const Term a = clamp_max(abs(x), 3.93);
  const Term minus = -a;
  const Term y = fma(minus, polynomial(kErf32, a), minus);
  // One part of ln 2 is enough, because erfc(|x|) scales down an error of y.
  const Split n = split(format, y, kLog2E, format.bias);
  const Term r = fma(n.integer, -0x1.62e43p-1, y);
  const Term power = power_of_two(format, n.sum);
  const Term rest = fma(r * r, polynomial(kExpm1Short32, r), r);
  return copysign(fma(power, rest, power - 1.0), x);
}

}  // namespace torch_remote::codegen::functions
