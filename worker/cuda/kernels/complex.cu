// Complex numbers, element by element.

#include "worker/cuda/kernels/complex_arguments.h"
#include "worker/cuda/kernels/device.h"

namespace torch_remote::worker::cuda {
namespace {

struct Complex {
  double real, imaginary;
};

__device__ Complex operator+(Complex a, Complex b) { return {a.real + b.real, a.imaginary + b.imaginary}; }
__device__ Complex operator*(Complex a, Complex b) {
  return {a.real * b.real - a.imaginary * b.imaginary, a.real * b.imaginary + a.imaginary * b.real};
}

__device__ double magnitude(double x) { return x < 0 ? -x : x == 0 ? 0 : x; }

// Of large and small numbers, too: one part is 1.
__device__ double size_of(Complex x) {
  const double a = magnitude(x.real), b = magnitude(x.imaginary);
  const double most = a > b ? a : b, least = a > b ? b : a;
  if (a == __builtin_inf() || b == __builtin_inf()) return __builtin_inf();
  if (a != a || b != b) return __builtin_nan("");
  if (most == 0) return 0;
  const double ratio = least / most;
  return most * __builtin_sqrt(1 + ratio * ratio);
}

// Smith's way, as torch's own; by zero each part alone.
__device__ Complex divided(Complex a, Complex b) {
  const double c = magnitude(b.real), d = magnitude(b.imaginary);
  if (c == 0 && d == 0) return {a.real / c, a.imaginary / d};
  if (c >= d) {
    const double ratio = b.imaginary / b.real, scale = 1 / (b.real + b.imaginary * ratio);
    return {(a.real + a.imaginary * ratio) * scale, (a.imaginary - a.real * ratio) * scale};
  }
  const double ratio = b.real / b.imaginary, scale = 1 / (b.real * ratio + b.imaginary);
  return {(a.real * ratio + a.imaginary) * scale, (a.imaginary * ratio - a.real) * scale};
}

constexpr double kPi = 3.141592653589793;

// atan(x) = 2 atan(x / (1 + sqrt(1 + x^2))), three times, then its series; x in [0, 1].
__device__ double arc_tangent(double x) {
  for (int i = 0; i < 3; ++i) x /= 1 + __builtin_sqrt(1 + x * x);
  const double z = x * x;
  double sum = 1.0 / 19;
  for (int n = 17; n >= 1; n -= 2) sum = 1.0 / n - z * sum;
  return 8 * x * sum;
}
__device__ double angle_of(Complex x) {
  const double a = magnitude(x.real), b = magnitude(x.imaginary);
  if (x.real != x.real || x.imaginary != x.imaginary) return __builtin_nan("");
  double angle = 0;
  if (a == b) {
    angle = a == 0 ? 0 : kPi / 4;
  } else {
    angle = a > b ? arc_tangent(b / a) : kPi / 2 - arc_tangent(a / b);
  }
  if (__builtin_bit_cast(u64, x.real) >> 63 != 0) angle = kPi - angle;
  return __builtin_copysign(angle, x.imaginary);
}

__device__ Complex polar(double size, double angle) {
  double sine = 0, cosine = 0;
  sine_cosine(angle, &sine, &cosine);
  return {size * cosine, size * sine};
}

__device__ Complex logarithm(Complex x) { return {log(size_of(x)), angle_of(x)}; }

__device__ Complex square_root(Complex x) {
  const double size = size_of(x);
  if (size == 0) return {0, x.imaginary};
  const double a = __builtin_sqrt((size + magnitude(x.real)) / 2), b = magnitude(x.imaginary) / (2 * a);
  const bool negative = x.real < 0;
  return {negative ? b : a, __builtin_copysign(negative ? a : b, x.imaginary)};
}

__device__ double half_sum(double x, double sign) { return (exp(x) + sign * exp(-x)) / 2; }

// As the C library's, of parts that are no numbers, too.
__device__ Complex exponential(Complex x) {
  const bool no_angle = x.imaginary - x.imaginary != 0;
  if (no_angle && x.real == __builtin_inf()) return {x.real, __builtin_nan("")};
  if (no_angle && x.real == -__builtin_inf()) return {0, 0};
  return x.imaginary == 0 ? Complex{exp(x.real), x.imaginary} : polar(exp(x.real), x.imaginary);
}

__device__ Complex power(Complex a, Complex b) {
  const Complex log_a = logarithm(a);
  Complex product = b * log_a;
  if (product.real != product.real && product.imaginary != product.imaginary &&
      magnitude(log_a.real) == __builtin_inf())
    product = {b.real * log_a.real, b.imaginary * log_a.real};  // infinite all the same, as products are in C
  return exponential(product);
}

// To a number of the call: those that torch does in other ways. False: it is none of them.
__device__ bool power_of_number(Complex a, Complex b, Complex* power) {
  const double exponent = b.real;
  if (b.imaginary != 0) return false;
  if (exponent == 0) {
    *power = {1, 0};
  } else if (exponent == 1 || exponent == -1) {
    *power = a;
  } else if (exponent == 2 || exponent == -2) {
    *power = a * a;
  } else if (exponent == 0.5 || exponent == -0.5) {
    *power = square_root(a);
  } else if (exponent == 3) {
    *power = a * a * a;
  } else {
    return false;
  }
  if (exponent < 0) *power = divided({1, 0}, *power);
  return true;
}

__device__ Complex compute(const ComplexArguments& f, Complex a, Complex b) {
  switch (f.what) {
    case ComplexOp::kAdd:
      return a + Complex{f.real, f.imaginary} * b;
    case ComplexOp::kMultiply:
      return a * b;
    case ComplexOp::kDivide:
      return divided(a, b);
    case ComplexOp::kPowerOfNumber:
      if (Complex known; power_of_number(a, b, &known)) return known;
      [[fallthrough]];
    case ComplexOp::kPower:  // (in one place, so that it is inlined: nothing is kept on a stack)
      return power(a, b);
    case ComplexOp::kEqual:
      return {a.real == b.real && a.imaginary == b.imaginary ? 1.0 : 0.0, 0};
    case ComplexOp::kNotEqual:
      return {a.real == b.real && a.imaginary == b.imaginary ? 0.0 : 1.0, 0};
    case ComplexOp::kNegative:
      return {-a.real, -a.imaginary};
    case ComplexOp::kConjugate:
      return {a.real, -a.imaginary};
    case ComplexOp::kReciprocal:
      return divided({1, 0}, a);
    case ComplexOp::kSquare:
      return a * a;
    case ComplexOp::kSquareRoot:
      return square_root(a);
    case ComplexOp::kExp:
      return polar(exp(a.real), a.imaginary);
    case ComplexOp::kLog:
      return logarithm(a);
    case ComplexOp::kSine:
    case ComplexOp::kCosine: {
      const Complex unit = polar(1, a.real);
      const double cosh = half_sum(a.imaginary, 1), sinh = half_sum(a.imaginary, -1);
      if (f.what == ComplexOp::kSine) return {unit.imaginary * cosh, unit.real * sinh};
      return {unit.real * cosh, -unit.imaginary * sinh};
    }
    case ComplexOp::kSign: {
      const double size = size_of(a);
      return size == 0 ? Complex{0, 0} : Complex{a.real / size, a.imaginary / size};
    }
    case ComplexOp::kAbs:
      return {size_of(a), 0};
    case ComplexOp::kAngle:
      return {angle_of(a), 0};
    default:
      return a;
  }
}

__device__ Complex load(u64 from, i64 at, i64 dtype) {
  if (from == 0) return {0, 0};
  return {load_float(from, 2 * at, dtype), load_float(from, 2 * at + 1, dtype)};
}

}  // namespace

KERNEL(256) complex_pointwise(const ComplexArguments f) {
  for (i64 i = first_item(); i < f.count; i += all_threads()) {
    Complex made;
    if (f.what == ComplexOp::kPolar) {
      made = polar(load_float(f.a, i, f.dtype), load_float(f.b, i, f.dtype));
    } else if (f.what == ComplexOp::kSelect) {
      made = load(pointer<const u8>(f.c)[i] != 0 ? f.a : f.b, i, f.dtype);
    } else {
      made = compute(f, load(f.a, i, f.dtype), load(f.b, i, f.dtype));
    }
    if (f.what == ComplexOp::kEqual || f.what == ComplexOp::kNotEqual) {
      pointer<u8>(f.out)[i] = made.real != 0;
    } else if (f.what == ComplexOp::kAbs || f.what == ComplexOp::kAngle) {
      store_float(f.out, i, f.out_dtype, made.real);
    } else {
      store_float(f.out, 2 * i, f.out_dtype, made.real);
      store_float(f.out, 2 * i + 1, f.out_dtype, made.imaginary);
    }
  }
}

}  // namespace torch_remote::worker::cuda
