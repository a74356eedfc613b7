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
      store_whole(range.out, i, range.dtype, range.whole_first + range.whole_step * i);
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
      default:
        pointer<u64>(triangle.out)[i] = 0;
    }
  }
}

}  // namespace torch_remote::worker::cuda
