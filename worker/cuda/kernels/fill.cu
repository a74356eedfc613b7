// Elements that follow from their places.

#include "worker/cuda/kernels/device.h"

namespace torch_remote::worker::cuda {
namespace {

// Of linspace: each step of the sum is rounded, as on the CPU.
__device__ double between(const RangeArguments& range, i64 i) {
  const double first = rounded(range.first, range.dtype), last = rounded(range.last, range.dtype);
  const double step = rounded(rounded(last - first, range.dtype) / static_cast<double>(range.count - 1), range.dtype);
  if (i < range.half) return first + rounded(step * static_cast<double>(i), range.dtype);
  return last - rounded(step * static_cast<double>(range.count - 1 - i), range.dtype);
}

}  // namespace

KERNEL(256) fill_range(const RangeArguments range) {
  for (i64 i = first_item(); i < range.count; i += all_threads()) {
    if (is_float(range.dtype)) {
      store_float(range.out, i, range.dtype,
                  range.half != 0 ? between(range, i) : range.first + range.step * static_cast<double>(i));
    } else {
      store_whole(range.out, i, range.dtype,
                  range.half != 0 ? static_cast<i64>(between(range, i)) : range.whole_first + range.whole_step * i);
    }
  }
}

KERNEL(256) fill_bits(const FillArguments fill) {
  for (i64 i = first_item(); i < fill.count; i += all_threads()) {
    switch (fill.item) {
      case 1:
        pointer<u8>(fill.out)[i] = static_cast<u8>(fill.bits);
        break;
      case 2:
        pointer<u16>(fill.out)[i] = static_cast<u16>(fill.bits);
        break;
      case 4:
        pointer<u32>(fill.out)[i] = static_cast<u32>(fill.bits);
        break;
      default:
        pointer<u64>(fill.out)[i] = fill.bits;
    }
  }
}

KERNEL(256) triangle(const TriangleArguments triangle) {
  for (i64 i = first_item(); i < triangle.count; i += all_threads()) {
    const i64 line = divide(i, triangle.columns), column = i - line * triangle.columns;
    const i64 row = line - divide(line, triangle.rows) * triangle.rows;
    const bool kept = triangle.upper != 0 ? column - row >= triangle.diagonal : column - row <= triangle.diagonal;
    if (kept) {
      move(triangle.out, i, triangle.in, i, triangle.item);
      continue;
    }
    switch (triangle.item) {
      case 1:
        pointer<u8>(triangle.out)[i] = 0;
        break;
      case 2:
        pointer<u16>(triangle.out)[i] = 0;
        break;
      case 4:
        pointer<u32>(triangle.out)[i] = 0;
        break;
      case 8:
        pointer<u64>(triangle.out)[i] = 0;
        break;
      default:
        pointer<u64>(triangle.out)[2 * i] = 0;
        pointer<u64>(triangle.out)[2 * i + 1] = 0;
    }
  }
}

KERNEL(256) sum_windows(const UnfoldedArguments f) {
  const bool floats = is_float(f.dtype);
  for (i64 at = first_item(); at < f.count; at += all_threads()) {
    const i64 line = divide(at, f.inner), inner = at - line * f.inner;
    const i64 outer = divide(line, f.length), t = line - outer * f.length;
    const i64 begin = t < f.size ? 0 : divide(t - f.size, f.step) + 1;
    const i64 end = divide(t, f.step) + 1 < f.windows ? divide(t, f.step) + 1 : f.windows;
    double sum = 0;
    i64 whole = 0;
    for (i64 w = begin; w < end; ++w) {
      const i64 from = ((outer * f.windows + w) * f.inner + inner) * f.size + t - w * f.step;
      if (floats) {
        sum += load_float(f.in, from, f.dtype);
      } else {
        whole += load_whole(f.in, from, f.dtype);
      }
    }
    if (floats) {
      store_float(f.out, at, f.dtype, sum);
    } else {
      store_whole(f.out, at, f.dtype, whole);
    }
  }
}

}  // namespace torch_remote::worker::cuda
