#include <array>
#include <vector>

#include "codegen/loop/function_tables.h"
#include "codegen/loop/functions.h"

// sin, cos, tan and their inverses.
//
// An argument is reduced to n quarter turns and a remainder r, |r| <= pi / 4, for which there are polynomials. Up to
// 2^46, multiples of pi / 2 are subtracted in parts (Cody and Waite). Larger arguments are multiplied by those bits of
// 1 / (2 pi) that determine the fraction (Payne and Hanek, Radian reduction for trigonometric functions, 1983). LoopIR
// has no branches, so both reductions are always computed.
namespace torch_remote::codegen::functions {
namespace {

constexpr double kFar = 0x1p46;
constexpr double kQuarters = 0x1.45f306dc9c883p-1;  // 2 / pi
// pi / 2 is the sum of these three.
constexpr double kQuarter1 = 0x1.921fb54442d18p+0;
constexpr double kQuarter2 = 0x1.1a62633145c07p-54;
constexpr double kQuarter3 = -0x1.f1976b7ed8fbcp-110;

Term fraction(Term x) { return x - round(x); }

struct Angle {
  Term quarters;  // i64; only the low two bits matter
  Pair rest;      // has no `low` for f32
};

// x is an f32 that was converted to f64, so its products with 29 bits of 1 / (2 pi) are exact. Bits before the 23rd
// give whole turns. The sum is accurate to 2^-54, and no f32 is closer to a multiple of pi / 2 than about 2^-30 of a
// turn.
Term far_single(Term x) {
  const std::span<const double> bits = tables::kInvTwoPi32;
  Term sum = fraction(x * bits[0]);
  for (size_t i = 1; i < bits.size(); ++i) {
    const Term product = x * bits[i];
    if (i + 1 == bits.size()) sum = fraction(sum);
    sum = sum + (i + 1 == bits.size() ? product : fraction(product));
  }
  return sum * 0x1.921fb54442d18p+2;
}

Angle reduce_single(Term x) {
  const Term near = where(abs(x) >= kFar, far_single(x), x);
  const Split n = split(double_format(), near, kQuarters, 0);
  const Term rest = fma(n.integer, -kQuarter2, fma(n.integer, -kQuarter1, near));
  return {n.sum.bits(DType::kInt64), {rest, {}}};
}

// Returns the five words of 50 bits of 1 / (2 pi) from word `first` on.
std::array<Term, 5> words_from(Term first) {
  std::vector<Term> words;
  for (const double word : tables::kInvTwoPi64) words.push_back(first.builder->constant(DType::kFloat64, word));
  for (const int64_t step : {16, 8, 4, 2, 1}) {
    const Term far = (first & step) != 0;
    // After this step only words first to first + step + 3 are needed.
    const size_t wanted = static_cast<size_t>(step) + 4;
    std::vector<Term> chosen;
    for (size_t i = 0; i < words.size() && i < wanted; ++i) {
      const auto other = i + static_cast<size_t>(step);
      chosen.push_back(other < words.size() ? where(far, words[other], words[i]) : words[i]);
    }
    words = chosen;
  }
  return {words[0], words[1], words[2], words[3], words[4]};
}

// Returns the fraction of x / (2 pi), for |x| >= 2^46. x is scaled so that the first word that matters comes right
// after the binary point.
Pair far_turns(Term x) {
  const Term field = (x.bits(DType::kInt64) >> 52) & 0x7ff;
  const Term above = field - 1075;  // number of bits of 1 / (2 pi) that give only whole turns
  const Term first =
      where(above < 0, above.integer_constant(0), (above * above.integer_constant(1311)) >> 16);  // above / 50
  const Term scaled = (x.bits(DType::kInt64) - ((first * first.integer_constant(50)) << 52)).bits(DType::kFloat64);
  const std::array<Term, 5> words = words_from(first);
  std::array<Pair, 4> products;
  double unit = 1;
  for (size_t i = 0; i < products.size(); ++i, unit *= 0x1p-50) products[i] = exact_product(scaled, words[i] * unit);
  // These numbers are multiples of about 2^-103 below 1, so the errors of these sums add up exactly.
  Pair sum = exact_sum(fraction(products[0].high), fraction(products[0].low));
  for (const Term part : {fraction(products[1].high), fraction(products[1].low), fraction(products[2].high)}) {
    const Pair next = exact_sum(sum.high, part);
    sum = {next.high, sum.low + next.low};
  }
  sum = exact_sum(fraction(sum.high), sum.low);
  const Pair third = exact_sum(sum.high, products[3].high);
  const Pair second = exact_sum(third.high, products[2].low);
  const Term last = fma(scaled, words[4] * unit, products[3].low);
  return quick_sum(second.high, (second.low + (third.low + sum.low)) + last);
}

Angle reduce_double(Term x) {
  const Split n = split(double_format(), x, kQuarters, 0);
  const Term first = fma(n.integer, -kQuarter1, x);  // exact
  const Pair product = exact_product(n.integer, n.integer.constant(kQuarter2));
  const Pair second = exact_sum(first, -product.high);
  const Pair near = quick_sum(second.high, second.low - fma(n.integer, kQuarter3, product.low));

  const Pair turns = far_turns(x);
  const Split quarters = split(double_format(), turns.high, 4, 0);
  const Pair fourths = quick_sum(fma(turns.high, 4.0, -quarters.integer), turns.low * 4.0);
  const Pair far = multiply(fourths, {x.constant(kQuarter1), x.constant(kQuarter2)});

  const Term is_far = abs(x) >= kFar;
  // For infinity the far path gives an arbitrary number. We add infinity - infinity, which is NaN.
  const Term invalid = x - x;
  return {where(is_far, quarters.sum.bits(DType::kInt64), n.sum.bits(DType::kInt64)),
          {where(is_far, far.high + invalid, near.high), where(is_far, far.low, near.low)}};
}

// sin and cos of the remainder. The results have no `low` if r has none.
Pair sine(const Format& format, Pair r) {
  using namespace tables;
  const Term z = r.high * r.high;
  const Term q = polynomial(select_coefficients(format, kSin32, kSinMid, kSin64), z);
  if (r.low.builder == nullptr) return {fma(r.high * z, q, r.high), {}};
  return quick_sum(r.high, fma(r.high * z, q, fma(z * -0.5, r.low, r.low)));
}

Pair cosine(const Format& format, Pair r) {
  using namespace tables;
  const Term z = r.high * r.high;
  const Term q = polynomial(select_coefficients(format, kCos32, kCosMid, kCos64), z);
  if (r.low.builder == nullptr) return {fma(z * z, q, fma(z, -0.5, 1.0)), {}};
  const Pair head = quick_sum(z.constant(1), z * -0.5);
  return quick_sum(head.high, head.low + fma(z * z, q, -(r.high * r.low)));
}

// sin of the angle plus `turned` quarter turns.
Term wave(const Format& format, Term x, int64_t turned) {
  const bool single = is_single(format);
  const Angle angle = single ? reduce_single(x.as(DType::kFloat64)) : reduce_double(x);
  Pair rest = angle.rest;
  Term quarters = angle.quarters;
  if (turned != 0) quarters = quarters + turned;
  quarters = quarters & 3;
  if (single) {
    rest.high = rest.high.as(format.type);
    quarters = quarters.as(format.integer);
  }
  const Term value = where((quarters & 1) != 0, cosine(format, rest).high, sine(format, rest).high);
  const Term sign = (quarters & 2) << (single ? 30 : 62);
  return (value.bits(format.integer) ^ sign).bits(format.type);
}

// Returns a / b: the remainder of the rounded quotient is divided, too.
Term quotient(Pair a, Pair b) {
  const Term q = a.high / b.high;
  return q + (fma(-q, b.high, a.high) + fma(-q, b.low, a.low)) / b.high;
}

}  // namespace

Term sin(const Format& format, Term x) {
  return passthrough_tiny(x, is_single(format) ? 0x1p-13 : 0x1p-28, wave(format, x, 0));
}

Term cos(const Format& format, Term x) { return wave(format, x, 1); }

// In the middle format, `x` is an f32 that was converted.
Term tan(const Format& format, Term x) {
  const bool middle = format.precision == Precision::kDoubleForSingle;
  const Angle angle = middle ? reduce_single(x) : reduce_double(x);
  const Pair s = sine(format, angle.rest), c = cosine(format, angle.rest);
  const Term odd = (angle.quarters & 1) != 0;
  const Term above = where(odd, -c.high, s.high), below = where(odd, s.high, c.high);
  if (middle) return passthrough_tiny(x, 0x1p-28, above / below);
  return passthrough_tiny(x, 0x1p-28, quotient({above, where(odd, -c.low, s.low)}, {below, where(odd, s.low, c.low)}));
}

namespace {

struct Constant {
  double high, low;
};
Constant half_pi(const Format& format) {
  return is_single(format) ? Constant{0x1.921fb6p+0, -0x1.777a5cp-25} : Constant{kQuarter1, kQuarter2};
}

// For |x| <= 1/2: asin(x) = x + `rest`. Else, with s = sqrt((1 - |x|) / 2): acos(|x|) = 2 (s + `rest`).
struct Inverse {
  Term large, head, rest;
};
Inverse inverse_sine(const Format& format, Term x) {
  using namespace tables;
  const Term a = abs(x);
  const Term large = a > 0.5;
  const Term z = where(large, fma(a, -0.5, 0.5), x * x);
  const Term root = sqrt(z);
  const Term head = where(large, root, x);
  const Term error = where(large && (root > 0.0), fma(-root, root, z) / (root + root), 0.0);
  const Term rest = fma(head * z, polynomial(select_coefficients(format, kAsin32, kAsin64, kAsin64), z), error);
  return {large, head, rest};
}

}  // namespace

Term asin(const Format& format, Term x) {
  const Inverse inverse = inverse_sine(format, x);
  const Constant half = half_pi(format);
  const Pair difference = quick_sum(x.constant(half.high), inverse.head * -2.0);
  const Term large = difference.high + (difference.low + fma(inverse.rest, -2.0, half.low));
  return copysign(where(inverse.large, large, inverse.head + inverse.rest), x);
}

Term acos(const Format& format, Term x) {
  const Inverse inverse = inverse_sine(format, x);
  const Constant half = half_pi(format);
  const Term sum = inverse.head + inverse.rest;
  // pi / 2 - (head + rest); for x < -1/2 the result is twice that.
  const Pair difference = quick_sum(x.constant(half.high), -inverse.head);
  const Term turned = difference.high + (difference.low + (half.low - inverse.rest));
  const Term large = where(x < 0.0, turned, sum);
  return where(inverse.large, large + large, turned);
}

namespace {

// Returns atan(t) for 0 <= t <= 1.
Term inverse_tangent(const Format& format, Term t) {
  using namespace tables;
  const Term z = t * t;
  return fma(t * z, polynomial(select_coefficients(format, kAtan32, kAtan64, kAtan64), z), t);
}

}  // namespace

Term atan(const Format& format, Term x) {
  const Term a = abs(x);
  const Term large = a > 1.0;
  const Term r = inverse_tangent(format, where(large, 1.0 / a, a));
  const Constant half = half_pi(format);
  return copysign(where(large, half.high - (r - half.low), r), x);
}

// Computes the angle from the nearer axis, then adds it to that axis's angle or subtracts it.
Term atan2(const Format& format, Term y, Term x) {
  const Term a = abs(x), b = abs(y);
  const Term steep = b > a;
  const Term most = max(a, b), least = min(a, b);
  const Term equal = where(most == 0.0, most.type(), 0.0, 1.0);
  const Term r = inverse_tangent(format, where(most == least, equal, least / most));
  const Term left = x.bits(format.integer) < 0;
  const Constant half = half_pi(format);
  const Term high = where(steep, half.high, where(left, x.type(), 2 * half.high, 0.0));
  const Term low = where(steep, half.low, where(left, x.type(), 2 * half.low, 0.0));
  const Term towards = where(steep, where(left, r, -r), where(left, -r, r));
  return copysign(high + (towards + low), y);
}

}  // namespace torch_remote::codegen::functions
