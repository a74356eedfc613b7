// Element by element: what compiled kernels (codegen) have no form for.

#include "worker/cuda/kernels/device.h"
#include "worker/cuda/kernels/pointwise_arguments.h"

namespace torch_remote::worker::cuda {
namespace {

__device__ double magnitude(double x) { return x < 0 ? -x : x == 0 ? 0 : x; }

// x - trunc(x / y) * y, exactly: long division.
__device__ double fmod_of(double x, double y) {
  double rest = magnitude(x);
  const double divisor = magnitude(y);
  if (x != x || y != y || rest == __builtin_inf() || divisor == 0) return __builtin_nan("");
  if (rest < divisor) return x;
  double step = divisor;
  while (step <= rest * 0.5) step *= 2;
  for (; step >= divisor; step *= 0.5) {
    if (rest >= step) rest -= step;
    if (rest == 0) break;
  }
  return __builtin_copysign(rest, x);
}

// log(1 + x) of x in [0, 1]
__device__ double log_of_more(double x) {
  return x < 1e-4 ? x * (1 + x * (-0.5 + x * (1.0 / 3 - x * 0.25))) : log(1 + x);
}

__device__ double compute(const PointwiseArguments& f, double a, double b, double c) {
  switch (f.what) {
    case Pointwise::kClamp:
      if (a != a) return a;
      if (f.has_b != 0 && (b != b || a < b)) a = b;
      if (a == a && f.has_c != 0 && (c != c || a > c)) a = c;
      return a;
    case Pointwise::kNanToNum:
      return a != a ? b : a == __builtin_inf() ? c : a == -__builtin_inf() ? f.d_number : a;
    case Pointwise::kFmod:
      return fmod_of(a, b);
    case Pointwise::kRemainder: {
      const double rest = fmod_of(a, b);
      return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
    }
    case Pointwise::kFloorDivide: {
      if (b == 0) return a / b;
      const double rest = fmod_of(a, b);
      double quotient = (a - rest) / b;
      if (rest != 0 && (b < 0) != (rest < 0)) quotient -= 1;
      if (quotient == 0) return __builtin_copysign(0.0, a / b);
      const double whole = __builtin_floor(quotient);
      return quotient - whole > 0.5 ? whole + 1 : whole;
    }
    case Pointwise::kTruncDivide:
      return __builtin_trunc(rounded(a / b, f.dtype == kFloat64 ? kFloat64 : kFloat32));
    case Pointwise::kFmax:
      return a != a || b > a ? b : a;
    case Pointwise::kFmin:
      return a != a || b < a ? b : a;
    case Pointwise::kHeaviside:
      return a == 0 ? b : a > 0 ? 1 : 0;
    case Pointwise::kEqual:
      return a == b ? 1 : 0;
    case Pointwise::kNotEqual:
      return a != b ? 1 : 0;
    case Pointwise::kLess:
      return a < b ? 1 : 0;
    case Pointwise::kLessOrEqual:
      return a <= b ? 1 : 0;
    case Pointwise::kGreater:
      return a > b ? 1 : 0;
    case Pointwise::kGreaterOrEqual:
      return a >= b ? 1 : 0;
    case Pointwise::kSignBit:
      return __builtin_bit_cast(u64, a) >> 63 != 0 ? 1 : 0;
    case Pointwise::kAngle:
      return a != a ? a : a < 0 ? 3.141592653589793 : 0;
    case Pointwise::kLogSigmoid:
      return (a < 0 ? a : a == a ? 0 : a) - log_of_more(exp(-magnitude(a)));
    case Pointwise::kExpOfNegative:
      return exp(-magnitude(a));
  }
  return a;
}

__device__ i64 compute(const PointwiseArguments& f, i64 a, i64 b, i64 c) {
  switch (f.what) {
    case Pointwise::kClamp:
      if (f.has_b != 0 && a < b) a = b;
      if (f.has_c != 0 && a > c) a = c;
      return a;
    case Pointwise::kFmod:
    case Pointwise::kRemainder:
    case Pointwise::kFloorDivide:
    case Pointwise::kTruncDivide: {
      if (b == 0) {
        fail(f.failure, 0, 0, 0);
        return 0;
      }
      const i64 quotient = b == -1 ? static_cast<i64>(-static_cast<u64>(a)) : a / b;
      const i64 rest = static_cast<i64>(static_cast<u64>(a) - static_cast<u64>(quotient) * static_cast<u64>(b));
      const bool goes_down = rest != 0 && (rest < 0) != (b < 0);
      if (f.what == Pointwise::kFmod) return rest;
      if (f.what == Pointwise::kRemainder) return goes_down ? rest + b : rest;
      return f.what == Pointwise::kFloorDivide && goes_down ? quotient - 1 : quotient;
    }
    case Pointwise::kFmax:
      return a > b ? a : b;
    case Pointwise::kFmin:
      return a < b ? a : b;
    case Pointwise::kHeaviside:
      return a == 0 ? b : a > 0 ? 1 : 0;
    case Pointwise::kEqual:
      return a == b ? 1 : 0;
    case Pointwise::kNotEqual:
      return a != b ? 1 : 0;
    case Pointwise::kLess:
      return a < b ? 1 : 0;
    case Pointwise::kLessOrEqual:
      return a <= b ? 1 : 0;
    case Pointwise::kGreater:
      return a > b ? 1 : 0;
    case Pointwise::kGreaterOrEqual:
      return a >= b ? 1 : 0;
    case Pointwise::kSignBit:
      return a < 0 ? 1 : 0;
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
      store_whole(f.out, i, f.out_dtype, static_cast<i64>(made));
    }
  }
}

KERNEL(256) pointwise_whole(const PointwiseArguments f) {
  for (i64 i = first_item(); i < f.count; i += all_threads()) {
    const i64 a = f.a != 0 ? load_whole(f.a, i, f.dtype) : f.a_whole;
    const i64 b = f.b != 0 ? load_whole(f.b, i, f.dtype) : f.b_whole;
    const i64 c = f.c != 0 ? load_whole(f.c, i, f.dtype) : f.c_whole;
    store_whole(f.out, i, f.out_dtype, compute(f, a, b, c));
  }
}

}  // namespace torch_remote::worker::cuda
