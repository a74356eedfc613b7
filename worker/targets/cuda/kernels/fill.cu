// Elements that are computed from their position.

#include "worker/targets/cuda/kernels/device.h"

namespace torch_remote::worker::cuda {
namespace {

// Powers with an integer exponent are exact where the result is representable.
__device__ double power(double x, double exponent) {
  constexpr double kMaxExponent = 1100;
  if (__builtin_rint(exponent) == exponent && exponent <= kMaxExponent && exponent >= -kMaxExponent) {
    const auto times = static_cast<i64>(exponent < 0 ? -exponent : exponent);
    double result = 1;
    for (i64 i = 0; i < times; ++i) result *= x;
    return exponent < 0 ? 1 / result : result;
  }
  return f64::pow(x, exponent);
}
// Rounds to the nearest integer if x differs from it only by the error of `power`.
__device__ double round_if_near(double x) {
  const double whole = __builtin_rint(x), apart = x < whole ? whole - x : x - whole;
  return apart <= 0x1p-44 * (x < 0 ? -x : x) ? whole : x;
}

// linspace: each step of the sum is rounded, as on the CPU.
__device__ double between(const LinspaceArguments& f, double first, double last, i64 i) {
  const double step = rounded(rounded(last - first, f.dtype) / static_cast<double>(f.count - 1), f.dtype);
  if (i < f.count / 2) return first + rounded(step * static_cast<double>(i), f.dtype);
  return last - rounded(step * static_cast<double>(f.count - 1 - i), f.dtype);
}

// Sets an element of `item` bytes (1, 2, 4, 8 or 16) to these bits; the halves of 16 bytes are equal.
__device__ void set_bits(u64 to, i64 at, i64 item, u64 bits) {
  switch (item) {
    case 1:
      pointer<u8>(to)[at] = static_cast<u8>(bits);
      break;
    case 2:
      pointer<u16>(to)[at] = static_cast<u16>(bits);
      break;
    case 4:
      pointer<u32>(to)[at] = static_cast<u32>(bits);
      break;
    case 8:
      pointer<u64>(to)[at] = bits;
      break;
    default:
      pointer<u64>(to)[2 * at] = bits;
      pointer<u64>(to)[2 * at + 1] = bits;
  }
}

// The sum of the windows' elements that were taken from element `at`.
template <typename T>
__device__ T sum_of_windows(const UnfoldBackwardArguments& f, i64 at) {
  const i64 line = divide(at, f.inner), inner = at - line * f.inner;
  const i64 outer = divide(line, f.length), t = line - outer * f.length;
  const i64 begin = t < f.size ? 0 : divide(t - f.size, f.step) + 1;
  const i64 end = divide(t, f.step) + 1 < f.windows ? divide(t, f.step) + 1 : f.windows;
  T sum = 0;
  for (i64 w = begin; w < end; ++w) {
    sum += load_number<T>(f.in, ((outer * f.windows + w) * f.inner + inner) * f.size + t - w * f.step, f.dtype);
  }
  return sum;
}

__device__ double end_of(double number, u64 at, i64 dtype) {
  const double end = at != 0 ? *pointer<const double>(at) : number;
  return is_float(dtype) ? rounded(end, dtype) : __builtin_trunc(end);
}

}  // namespace

KERNEL(256) fill_range(const RangeArguments range) {
  for (i64 i = first_item(); i < range.count; i += all_threads()) {
    if (is_float(range.dtype)) {
      store_float(range.out, i, range.dtype, range.first + range.step * static_cast<double>(i));
    } else {
      store_int(range.out, i, range.dtype, range.int_first + range.int_step * i);
    }
  }
}

KERNEL(256) fill_linspace(const LinspaceArguments f) {
  const double first = end_of(f.first, f.first_at, f.dtype), last = end_of(f.last, f.last_at, f.dtype);
  for (i64 i = first_item(); i < f.count; i += all_threads()) {
    double x = f.count > 1 ? between(f, first, last, i) : first;
    if (f.raises != 0) x = power(f.base, rounded(x, f.dtype));
    if (is_float(f.dtype)) {
      store_float(f.out, i * f.step, f.dtype, x);
    } else {
      store_int(f.out, i * f.step, f.dtype, static_cast<i64>(f.raises != 0 ? round_if_near(x) : x));
    }
  }
}

KERNEL(256) fill_bits(const FillArguments fill) {
  for (i64 i = first_item(); i < fill.count; i += all_threads()) {
    set_bits(fill.out, i, fill.item, fill.bits);
  }
}

KERNEL(256) triangle(const TriangleArguments triangle) {
  for (i64 i = first_item(); i < triangle.count; i += all_threads()) {
    const i64 line = divide(i, triangle.columns), column = i - line * triangle.columns;
    const i64 row = line - divide(line, triangle.rows) * triangle.rows;
    const bool kept = triangle.upper != 0 ? column - row >= triangle.diagonal : column - row <= triangle.diagonal;
    if (kept) {
      move(triangle.out, i, triangle.in, i, triangle.item);
    } else {
      set_bits(triangle.out, i, triangle.item, 0);
    }
  }
}

KERNEL(256) unfold_backward(const UnfoldBackwardArguments f) {
  for (i64 at = first_item(); at < f.count; at += all_threads()) {
    if (is_float(f.dtype)) {
      store_float(f.out, at, f.dtype, sum_of_windows<double>(f, at));
    } else {
      store_int(f.out, at, f.dtype, sum_of_windows<i64>(f, at));
    }
  }
}

KERNEL(1) assert_nonzero(const AssertArguments given) {
  if (*pointer<const i64>(given.number) == 0) fail(given.failure, 0, 0, 0);
}

}  // namespace torch_remote::worker::cuda
