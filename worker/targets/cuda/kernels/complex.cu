// Pointwise ops on complex numbers.

#include "worker/targets/cuda/kernels/complex_arguments.h"
#include "worker/targets/cuda/kernels/device.h"

namespace torch_remote::worker::cuda {
namespace {

struct Complex {
  double real, imaginary;
};

__device__ Complex operator+(Complex a, Complex b) { return {a.real + b.real, a.imaginary + b.imaginary}; }
__device__ Complex operator*(Complex a, Complex b) {
  return {a.real * b.real - a.imaginary * b.imaginary, a.real * b.imaginary + a.imaginary * b.real};
}

__device__ double size_of(Complex x) { return f64::hypot(x.real, x.imaginary); }
__device__ double angle_of(Complex x) { return f64::atan2(x.imaginary, x.real); }

// Smith's algorithm, as in torch. Division by zero divides each part alone.
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

__device__ Complex polar(double size, double angle) {
  double sine = 0, cosine = 0;
  sine_cosine(angle, &sine, &cosine);
  return {size * cosine, size * sine};
}

// Near 1, with the larger part a: |x|^2 - 1 = (a - 1) (a + 1) + b^2
__device__ Complex logarithm(Complex x) {
  const double size = size_of(x), a = magnitude(x.real), b = magnitude(x.imaginary);
  const double most = a > b ? a : b, least = a > b ? b : a;
  const bool is_near = size > 0.7 && size < 1.4;
  return {is_near ? f64::log1p((most - 1) * (most + 1) + least * least) / 2 : log(size), angle_of(x)};
}

__device__ Complex square_root(Complex x) {
  const double size = size_of(x);
  if (size == 0) return {0, x.imaginary};
  const double a = __builtin_sqrt((size + magnitude(x.real)) / 2), b = magnitude(x.imaginary) / (2 * a);
  const bool negative = x.real < 0;
  return {negative ? b : a, __builtin_copysign(negative ? a : b, x.imaginary)};
}

// As in the C library, including infinities and NaN.
__device__ Complex exponential(Complex x) {
  const bool no_angle = x.imaginary - x.imaginary != 0;
  if (no_angle && x.real == __builtin_inf()) return {x.real, __builtin_nan("")};
  if (no_angle && x.real == -__builtin_inf()) return {0, 0};
  return x.imaginary == 0 ? Complex{exp(x.real), x.imaginary} : polar(exp(x.real), x.imaginary);
}

__device__ Complex hyperbolic_sine(Complex x) {
  if (x.imaginary == 0) return {f64::sinh(x.real), x.imaginary};
  const Complex unit = polar(1, x.imaginary);
  return {f64::sinh(x.real) * unit.real, f64::cosh(x.real) * unit.imaginary};
}
__device__ Complex hyperbolic_cosine(Complex x) {
  if (x.imaginary == 0) return {f64::cosh(x.real), __builtin_copysign(1.0, x.real) * x.imaginary};
  const Complex unit = polar(1, x.imaginary);
  return {f64::cosh(x.real) * unit.real, f64::sinh(x.real) * unit.imaginary};
}
// Kahan's algorithm (Branch Cuts for Complex Elementary Functions), with sine and cosine instead of the tangent.
__device__ Complex hyperbolic_tangent(Complex x) {
  if (x.imaginary == 0 && x.real - x.real == 0) return {f64::tanh(x.real), x.imaginary};
  const Complex unit = polar(1, x.imaginary);
  if (magnitude(x.real) > 20) {
    const double rest = x.real - x.real == 0 ? 4 * unit.real * unit.imaginary * exp(-2 * magnitude(x.real)) : 0;
    return {__builtin_copysign(1.0, x.real), rest};
  }
  const double sinh = f64::sinh(x.real), below = unit.real * unit.real + sinh * sinh;
  return {sinh * f64::cosh(x.real) / below, unit.imaginary * unit.real / below};
}

// exp(x) cos y - 1 = (exp(x) - 1) cos y - 2 sin(y / 2)^2
__device__ Complex exponential_less_one(Complex x) {
  if (x.imaginary == 0) return {f64::expm1(x.real), x.imaginary};
  const Complex unit = polar(1, x.imaginary), half = polar(1, x.imaginary / 2);
  return {f64::expm1(x.real) * unit.real - 2 * half.imaginary * half.imaginary, exp(x.real) * unit.imaginary};
}
// |1 + x|^2 - 1 = a (2 + a) + b^2
__device__ Complex logarithm_of_more(Complex x) {
  const Complex more = {1 + x.real, x.imaginary};
  const bool is_small = magnitude(x.real) < 0.5 && magnitude(x.imaginary) < 0.5;
  return {is_small ? f64::log1p(x.real * (2 + x.real) + x.imaginary * x.imaginary) / 2 : log(size_of(more)),
          angle_of(more)};
}

__device__ Complex power(Complex a, Complex b) {
  const Complex log_a = logarithm(a);
  Complex product = b * log_a;
  if (product.real != product.real && product.imaginary != product.imaginary &&
      magnitude(log_a.real) == __builtin_inf())
    product = {b.real * log_a.real, b.imaginary * log_a.real};  // Infinite despite NaN, as in C's products.
  return exponential(product);
}

// Exponents that are numbers of the call and that torch treats specially. False: it is none of these.
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

constexpr double kLn2 = 0x1.62e42fefa39efp-1, kLn10 = 0x1.26bb1bbb55516p+1;

__device__ __attribute__((always_inline)) Complex compute(const ComplexArguments& f, Complex a, Complex b, Complex c) {
  const Complex times{f.real, f.imaginary};
  switch (f.what) {
    case ComplexOp::kIsInfinite:
      return {magnitude(a.real) == __builtin_inf() || magnitude(a.imaginary) == __builtin_inf() ? 1.0 : 0.0, 0};
    case ComplexOp::kAdd:
      return a + times * b;
    case ComplexOp::kAddProduct:
      return a + times * b * c;
    case ComplexOp::kAddQuotient:
      return a + divided(times * b, c);
    case ComplexOp::kLerp: {  // Starts at the nearer end.
      const Complex way = {b.real - a.real, b.imaginary - a.imaginary};
      if (size_of(c) < 0.5) return a + c * way;
      const Complex back = way * Complex{1 - c.real, -c.imaginary};
      return {b.real - back.real, b.imaginary - back.imaginary};
    }
    case ComplexOp::kMultiply:
      return a * b;
    case ComplexOp::kDivide:
      return divided(a, b);
    case ComplexOp::kTanhBackward:
    case ComplexOp::kSigmoidBackward: {
      const Complex from = f.what == ComplexOp::kTanhBackward ? Complex{1, 0} : b, square = b * b;
      return a * Complex{from.real - square.real, square.imaginary - from.imaginary};
    }
    case ComplexOp::kPowerOfNumber:
      if (Complex known; power_of_number(a, b, &known)) return known;
      [[fallthrough]];
    case ComplexOp::kPower:
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
    case ComplexOp::kReciprocalRoot:
      return divided({1, 0}, square_root(a));
    case ComplexOp::kExp:
      return polar(exp(a.real), a.imaginary);
    case ComplexOp::kExp2:
      return polar(exp(a.real * kLn2), a.imaginary * kLn2);
    case ComplexOp::kExpm1:
      return exponential_less_one(a);
    case ComplexOp::kLog:
    case ComplexOp::kLog2:
    case ComplexOp::kLog10: {
      const Complex log = logarithm(a);
      const double base = f.what == ComplexOp::kLog2 ? kLn2 : f.what == ComplexOp::kLog10 ? kLn10 : 1;
      return {log.real / base, log.imaginary / base};
    }
    case ComplexOp::kLog1p:
      return logarithm_of_more(a);
    // Each function is called in one place, so that it is inlined and needs no stack.
    case ComplexOp::kSine:  // sin(x) = -i sinh(i x)
    case ComplexOp::kSinc:
    case ComplexOp::kSinh: {
      const bool is_sinc = f.what == ComplexOp::kSinc, rotates = f.what != ComplexOp::kSinh;
      if (is_sinc && a.real == 0 && a.imaginary == 0) return {1, 0};
      const Complex x = is_sinc ? Complex{kPi * a.real, kPi * a.imaginary} : a;
      const Complex made = hyperbolic_sine(rotates ? Complex{-x.imaginary, x.real} : x);
      const Complex sine = rotates ? Complex{made.imaginary, -made.real} : made;
      return is_sinc ? divided(sine, x) : sine;
    }
    case ComplexOp::kCosine:
    case ComplexOp::kCosh:
      return hyperbolic_cosine(f.what == ComplexOp::kCosine ? Complex{-a.imaginary, a.real} : a);
    case ComplexOp::kTangent:
    case ComplexOp::kTanh: {
      const bool rotates = f.what == ComplexOp::kTangent;
      const Complex made = hyperbolic_tangent(rotates ? Complex{-a.imaginary, a.real} : a);
      return rotates ? Complex{made.imaginary, -made.real} : made;
    }
    case ComplexOp::kSigmoid:
    case ComplexOp::kSilu: {
      const Complex below = Complex{1, 0} + polar(exp(-a.real), -a.imaginary);
      return divided(f.what == ComplexOp::kSilu ? a : Complex{1, 0}, below);
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

// Kahan's algorithms (Branch Cuts for Complex Elementary Functions). asinh(x) = -i asin(i x). acosh(x) = i acos(x),
// with the sign that makes its real part positive. atan(x) = -i atanh(i x).
__device__ __attribute__((always_inline)) Complex inverse(ComplexOp what, Complex a) {
  const bool rotates = what == ComplexOp::kAsinh || what == ComplexOp::kAtan;
  const Complex x = rotates ? Complex{-a.imaginary, a.real} : a;
  const bool is_finite = x.real - x.real == 0 && x.imaginary - x.imaginary == 0;
  const bool is_infinite = magnitude(x.real) == __builtin_inf() || magnitude(x.imaginary) == __builtin_inf();
  Complex made = {__builtin_nan(""), __builtin_nan("")};
  if (what == ComplexOp::kAtan || what == ComplexOp::kAtanh) {
    const double real = magnitude(x.real), less = 1 - real, square = x.imaginary * x.imaginary;
    if (is_finite) {
      made.real = f64::log1p(4 * real / (less * less + square)) / 4;
      made.imaginary = angle_of({less * (1 + real) - square, 2 * x.imaginary}) / 2;
    } else if (is_infinite) {
      made = {0, __builtin_copysign(kPi / 2, x.imaginary)};
    }
    made.real = __builtin_copysign(made.real, x.real);
  } else {
    const bool is_sine = what == ComplexOp::kAsin || what == ComplexOp::kAsinh;
    const Complex less = square_root({1 - x.real, -x.imaginary}), more = square_root({1 + x.real, x.imaginary});
    // The imaginary part of the arc cosine.
    double imaginary = is_infinite ? __builtin_copysign(__builtin_inf(), -x.imaginary) : __builtin_nan("");
    if (is_finite) imaginary = f64::asinh(more.real * less.imaginary - more.imaginary * less.real);
    const Complex sides = !is_finite ? x
                          : is_sine  ? Complex{magnitude((less * more).real), x.real}
                                     : Complex{more.real, less.real};
    const double angle = angle_of(sides);
    if (is_finite) {
      made.real = is_sine ? angle : 2 * angle;
    } else {
      made.real = is_sine ? __builtin_copysign(kPi / 2 - magnitude(angle), x.real) : magnitude(angle);
    }
    made.imaginary = is_sine ? -imaginary : imaginary;
    if (what == ComplexOp::kAcosh) made = {magnitude(made.imaginary), __builtin_copysign(made.real, x.imaginary)};
  }
  return rotates ? Complex{made.imaginary, -made.real} : made;
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
      made = compute(f, load(f.a, i, f.dtype), load(f.b, i, f.dtype), load(f.c, i, f.dtype));
    }
    if (f.what <= ComplexOp::kIsInfinite) {
      pointer<u8>(f.out)[i] = made.real != 0;
    } else if (f.what == ComplexOp::kAbs || f.what == ComplexOp::kAngle) {
      store_float(f.out, i, f.out_dtype, made.real);
    } else {
      store_float(f.out, 2 * i, f.out_dtype, made.real);
      store_float(f.out, 2 * i + 1, f.out_dtype, made.imaginary);
    }
  }
}

KERNEL(256) complex_inverse(const ComplexArguments f) {
  for (i64 i = first_item(); i < f.count; i += all_threads()) {
    const Complex made = inverse(f.what, load(f.a, i, f.dtype));
    store_float(f.out, 2 * i, f.out_dtype, made.real);
    store_float(f.out, 2 * i + 1, f.out_dtype, made.imaginary);
  }
}

// One block per line.
KERNEL(256) complex_product(const ScanArguments scan) {
  __shared__ Complex shared[256];
  for (i64 line = block(); line < scan.outer * scan.inner; line += blocks()) {
    const i64 outer = divide(line, scan.inner), begin = outer * scan.length * scan.inner + line - outer * scan.inner;
    Complex product = {1, 0};
    for (i64 i = thread(); i < scan.length; i += 256) {
      product = product * load(scan.in, begin + i * scan.inner, scan.in_dtype);
    }
    product = over_block<256>(product, shared, [](Complex a, Complex b) { return a * b; });
    if (thread() != 0) continue;
    store_float(scan.out, 2 * line, scan.out_dtype, product.real);
    store_float(scan.out, 2 * line + 1, scan.out_dtype, product.imaginary);
  }
}

// One thread per line.
KERNEL(256) complex_running_product(const ScanArguments scan) {
  for (i64 line = first_item(); line < scan.outer * scan.inner; line += all_threads()) {
    const i64 outer = divide(line, scan.inner);
    i64 at = outer * scan.length * scan.inner + line - outer * scan.inner;
    Complex product = {1, 0};
    for (i64 i = 0; i < scan.length; ++i, at += scan.inner) {
      product = product * load(scan.in, at, scan.in_dtype);
      store_float(scan.out, 2 * at, scan.out_dtype, product.real);
      store_float(scan.out, 2 * at + 1, scan.out_dtype, product.imaginary);
    }
  }
}

}  // namespace torch_remote::worker::cuda
