// Pointwise ops in forms that compiled kernels (codegen) do not support.

#include "worker/targets/cuda/kernels/device.h"
#include "worker/targets/cuda/kernels/pointwise_arguments.h"

namespace torch_remote::worker::cuda {
namespace {

constexpr double kPi = 3.141592653589793, kSqrtPi = 1.7724538509055159;

// The inverse of erf: Winitzki's approximation, then Halley's method. `size` is |y|, and `rest` is 1 - |y|.
__device__ double inverse_erf_of(double size, double rest) {
  if (!(size <= 1)) return __builtin_nan("");
  if (rest == 0) return __builtin_inf();
  if (size < 1e-9) return size * kSqrtPi / 2;
  const double a = 0.147, l = log(rest * (1 + size)), b = 2 / (kPi * a) + l / 2;
  double x = __builtin_sqrt(__builtin_sqrt(b * b - l / a) - b);
  for (int i = 0; i < 3; ++i) {
    const double over = x < 1.5 ? f64::erf(x) - size : rest - f64::erfc(x);
    const double u = over / (2 / kSqrtPi * exp(-x * x));
    x -= u / (1 + x * u);
  }
  return x;
}
__device__ double inverse_erf(double y) {
  const double size = magnitude(y);
  return __builtin_copysign(inverse_erf_of(size, 1 - size), y);
}

__device__ double digamma(double x) {
  if (x != x || x == __builtin_inf()) return x;
  if (x == 0) return __builtin_copysign(__builtin_inf(), -x);
  double sum = 0;
  if (x < 0) {
    const double part = x - __builtin_trunc(x);
    if (part == 0 || x == -__builtin_inf()) return __builtin_nan("");
    double sine = 0, cosine = 0;
    sine_cosine(kPi * part, &sine, &cosine);
    sum = -kPi * cosine / sine;
    x = 1 - x;
  }
  for (; x < 10; x += 1) sum -= 1 / x;
  const double r = 1 / (x * x);
  const double rest =
      ((((((1.0 / 12 * r - 691.0 / 32760) * r + 1.0 / 132) * r - 1.0 / 240) * r + 1.0 / 252) * r - 1.0 / 120) * r +
       1.0 / 12) *
      r;
  return sum + log(x) - 0.5 / x - rest;
}

// The result of frexp; infinities and NaN are unchanged.
struct Scaled {
  double mantissa;
  i64 exponent;
};
__device__ Scaled mantissa_of(double x) {
  if (x == 0 || x - x != 0) return {x, 0};
  i64 exponent = 0;
  if (magnitude(x) < 0x1p-1022) {
    x *= 0x1p64;
    exponent = -64;
  }
  const u64 bits = __builtin_bit_cast(u64, x);
  exponent += static_cast<i64>(bits >> 52 & 0x7FF) - 1022;
  return {__builtin_bit_cast(double, (bits & 0x800FFFFFFFFFFFFF) | 0x3FE0000000000000), exponent};
}

// The next float towards b. The bits of floats of one sign are ordered like the floats.
__device__ double next_after(double a, double b, i64 dtype) {
  if (a != a || b != b) return __builtin_nan("");
  if (a == b) return b;
  const i64 step = (a < b) == (a > 0) ? 1 : -1;
  const double least = b > 0 ? 1 : -1;
  switch (dtype) {
    case kFloat16: {
      if (a == 0) return least * 0x1p-24;
      const auto bits = __builtin_bit_cast(u16, static_cast<_Float16>(static_cast<float>(a)));
      return static_cast<double>(static_cast<float>(__builtin_bit_cast(_Float16, static_cast<u16>(bits + step))));
    }
    case kBFloat16:
      if (a == 0) return least * 0x1p-133;
      return static_cast<double>(from_bfloat16(static_cast<u16>(to_bfloat16(static_cast<float>(a)) + step)));
    case kFloat32:
      if (a == 0) return least * 0x1p-149;
      return static_cast<double>(__builtin_bit_cast(
          float, static_cast<u32>(__builtin_bit_cast(u32, static_cast<float>(a)) + static_cast<u32>(step))));
    default:
      if (a == 0) return least * 0x1p-1074;
      return __builtin_bit_cast(double, __builtin_bit_cast(u64, a) + static_cast<u64>(step));
  }
}

// Each step is rounded as in torch; for half types to f32.
__device__ double round_decimals(const PointwiseArguments& f, double a, double ten) {
  const i64 wide = f.dtype == kFloat64 ? kFloat64 : kFloat32;
  if (f.b_number < 0) return rounded(__builtin_rint(rounded(a / ten, wide)), wide) * ten;
  return rounded(__builtin_rint(rounded(a * ten, wide)), wide) / ten;
}

__device__ u64 gcd(i64 a, i64 b) {
  u64 x = a < 0 ? -static_cast<u64>(a) : static_cast<u64>(a), y = b < 0 ? -static_cast<u64>(b) : static_cast<u64>(b);
  while (y != 0) {
    const u64 rest = x % y;
    x = y;
    y = rest;
  }
  return x;
}

__device__ double compute(const PointwiseArguments& f, double a, double b, double c) {
  switch (f.what) {
    case Pointwise::kTruncDivide:
      return __builtin_trunc(rounded(a / b, f.dtype == kFloat64 ? kFloat64 : kFloat32));
    case Pointwise::kSignBit:
      return __builtin_bit_cast(u64, a) >> 63 != 0 ? 1 : 0;
    case Pointwise::kAngle:
      return a != a ? a : a < 0 ? 3.141592653589793 : 0;
    case Pointwise::kErfInv:
      return inverse_erf(a);
    case Pointwise::kDigamma:
      return digamma(a);
    case Pointwise::kSinc: {
      if (a == 0) return 1;
      const double product = rounded(kPi * a, f.dtype == kFloat64 ? kFloat64 : kFloat32);
      if (product - product != 0) return __builtin_nan("");
      double sine = 0, cosine = 0;
      sine_cosine(product, &sine, &cosine);
      return sine / product;
    }
    case Pointwise::kEntropy:
      return a > 0 ? -a * log(a) : a == 0 ? 0 : a != a ? a : -__builtin_inf();
    case Pointwise::kMantissa:
      return mantissa_of(a).mantissa;
    case Pointwise::kExponent:
      return static_cast<double>(mantissa_of(a).exponent);
    case Pointwise::kNextAfter:
      return next_after(a, b, f.dtype);
    case Pointwise::kRoundDecimals:
      return round_decimals(f, a, c);
    case Pointwise::kGlu:
      return a / (1 + exp(-b));
    case Pointwise::kGluSlope: {
      const double gate = 1 / (1 + exp(-b));
      return c * a * gate * (1 - gate);
    }
    case Pointwise::kBinaryCrossEntropy: {
      if (!(a >= 0 && a <= 1)) fail(f.failure, 0, 0, 0);
      const double is = log(a), is_not = log(1 - a);
      const double loss = -(b * (is < -100 ? -100 : is) + (1 - b) * (is_not < -100 ? -100 : is_not));
      return f.has_c != 0 ? loss * c : loss;
    }
    case Pointwise::kRenorm:
      return b > f.d_number ? a * (f.d_number / (b + 1e-7)) : a;
    default:
      return a;
  }
}

// -- Special functions ------------------------------------------------------------------------------------------------

// The power series, whose terms are positive. For large |x|, the asymptotic series, times exp(|x|).
__device__ double bessel_i(double x, double order, bool scales) {
  const double a = magnitude(x);
  const bool is_large = a > 30;
  double sum = 1, term = 1;
  if (is_large) {
    for (int k = 1; k <= 30; ++k) {
      const double odd = 2 * k - 1;
      term *= (odd * odd - 4 * order * order) / (8 * k * a);
      sum += term;
    }
    sum /= __builtin_sqrt(2 * kPi * a);
  } else {
    term = sum = order == 0 ? 1 : a / 2;
    for (int k = 1; k < 100 && term > sum * 1e-18; ++k) {
      term *= a * a / (4 * k * (k + order));
      sum += term;
    }
  }
  if (scales != is_large) sum *= exp(scales ? -a : a);
  return x != x ? x : order != 0 ? __builtin_copysign(sum, x) : sum;
}

// exp(x^2) erfc(x)
__device__ double scaled_erfc(double x) {
  const double a = magnitude(x);
  double made = 0;
  if (a < 1.5) {
    made = exp(a * a) * f64::erfc(a);
  } else {
    double rest = 0;
    for (int n = 80; n >= 1; --n) rest = n * 0.5 / (a + rest);
    made = 1 / kSqrtPi / (a + rest);
  }
  return x != x ? x : x < 0 ? 2 * exp(a * a) - made : made;
}

constexpr double kRoot2 = 1.4142135623730951;

__device__ double log_ndtr(double x) {
  const double scaled = scaled_erfc(magnitude(x) / kRoot2), tail = exp(-x * x / 2) * scaled / 2;
  if (x != x) return x;
  if (x < 0) return log(scaled / 2) - x * x / 2;
  return tail < 1e-4 ? -tail * (1 + tail * (0.5 + tail * (1.0 / 3 + tail / 4))) : log(1 - tail);
}

__device__ double ndtri(double p) {
  const double rest = 2 * (p < 0.5 ? p : 1 - p);
  if (!(rest >= 0)) return __builtin_nan("");
  return __builtin_copysign(kRoot2 * inverse_erf_of(1 - rest, rest), p - 0.5);
}

// a^-s
__device__ double inverse_power(double a, double s) {
  const double size = exp(-s * log(magnitude(a)));
  return a < 0 && s - 2 * __builtin_floor(s / 2) != 0 ? -size : size;
}
// The sum of (q + n)^-s: some terms, then the Euler-Maclaurin formula.
__device__ double zeta(double s, double q) {
  if (s != s || q != q || s < 1) return __builtin_nan("");
  if (s == 1) return __builtin_inf();
  if (q <= 0 && q == __builtin_floor(q)) return __builtin_inf();
  if (q <= 0 && s != __builtin_floor(s)) return __builtin_nan("");
  double sum = 0, a = q;
  for (int n = 0; n < 10 || a < 10; ++n, a += 1) {
    const double term = inverse_power(a, s);
    sum += term;
    if (magnitude(term) < magnitude(sum) * 1e-17 && a > 0) return sum;
  }
  const double last = inverse_power(a, s);
  sum += last * (a / (s - 1) + 0.5);
  // Bernoulli numbers divided by factorials.
  const double inverse = 1 / (a * a);
  double factor = last * s / a, scale = 1.0 / 12;
  for (int k = 1; k <= 10; ++k) {
    sum += factor * scale;
    factor *= (s + 2 * k - 1) * (s + 2 * k) * inverse;
    scale *= k == 1   ? -1.0 / 60
             : k == 2 ? -1.0 / 42
             : k == 3 ? -1.0 / 40
             : k == 4 ? -5.0 / 198
             : k == 5 ? -691.0 / 27300
                      : -1 / (4 * kPi * kPi);  // Nearly.
  }
  return sum;
}

__device__ double polygamma(double order, double x, i64 dtype) {
  if (order == 0) return digamma(x);
  if (order == 1 && x == __builtin_inf()) return 0;
  if (order == 1 && x < 0 && x == __builtin_floor(x)) {  // torch's result there is finite, as pi is rounded.
    const i64 wide = dtype == kFloat64 ? kFloat64 : kFloat32;
    double sine = 0, cosine = 0;
    sine_cosine(rounded(rounded(kPi, wide) * x, wide), &sine, &cosine);
    return kPi * kPi / (sine * sine);
  }
  double factorial = 1;
  for (double k = 2; k <= order; k += 1) factorial *= k;
  const double made = factorial * zeta(order + 1, x);
  return order - 2 * __builtin_floor(order / 2) != 0 ? made : -made;
}

__device__ double compute_special(const PointwiseArguments& f, double a, double b) {
  switch (f.what) {
    case Pointwise::kBesselI:
      return bessel_i(a, b, f.c_number != 0);
    case Pointwise::kErfcx:
      return scaled_erfc(a);
    case Pointwise::kLogNdtr:
      return log_ndtr(a);
    case Pointwise::kNdtri:
      return ndtri(a);
    case Pointwise::kZeta:
      return zeta(a, b);
    default:
      return polygamma(b, a, f.dtype);
  }
}

__device__ i64 compute(const PointwiseArguments& f, i64 a, i64 b, i64 c) {
  switch (f.what) {
    case Pointwise::kTruncDivide: {
      if (b == 0) {
        fail(f.failure, 0, 0, 0);
        return 0;
      }
      return b == -1 ? static_cast<i64>(-static_cast<u64>(a)) : a / b;
    }
    case Pointwise::kSignBit:
      return a < 0 ? 1 : 0;
    case Pointwise::kGcd:
      return static_cast<i64>(gcd(a, b));
    case Pointwise::kLcm: {
      const u64 divisor = gcd(a, b);
      if (divisor == 0) return 0;
      const u64 bits = static_cast<u64>(a / static_cast<i64>(divisor)) * static_cast<u64>(b);
      const i64 product = f.dtype == kInt32 ? static_cast<int>(bits) : static_cast<i64>(bits);  // As C++ computes it.
      return product < 0 ? static_cast<i64>(-static_cast<u64>(product)) : product;
    }
    default:
      return a;
  }
}

}  // namespace

KERNEL(256) pointwise_float(const PointwiseArguments f) {
  for (i64 i = first_item(); i < f.count; i += all_threads()) {
    const double a = f.a != 0 ? load_float(f.a, i, f.dtype) : f.a_number;
    const double b = f.b != 0 ? load_float(f.b, i, f.dtype) : f.b_number;
    const double c = f.c != 0 ? load_float(f.c, i, f.dtype) : f.c_number;
    const double made = compute(f, a, b, c);
    if (is_float(f.out_dtype)) {
      store_float(f.out, i, f.out_dtype, made);
    } else {
      store_int(f.out, i, f.out_dtype, static_cast<i64>(made));
    }
  }
}

KERNEL(256) pointwise_special(const PointwiseArguments f) {
  for (i64 i = first_item(); i < f.count; i += all_threads()) {
    const double a = f.a != 0 ? load_float(f.a, i, f.dtype) : f.a_number;
    const double b = f.b != 0 ? load_float(f.b, i, f.dtype) : f.b_number;
    store_float(f.out, i, f.out_dtype, compute_special(f, a, b));
  }
}

KERNEL(256) pointwise_int(const PointwiseArguments f) {
  for (i64 i = first_item(); i < f.count; i += all_threads()) {
    const i64 a = f.a != 0 ? load_int(f.a, i, f.dtype) : f.a_int;
    const i64 b = f.b != 0 ? load_int(f.b, i, f.dtype) : f.b_int;
    const i64 c = f.c != 0 ? load_int(f.c, i, f.dtype) : f.c_int;
    store_int(f.out, i, f.out_dtype, compute(f, a, b, c));
  }
}

}  // namespace torch_remote::worker::cuda
