// Pooling and resampling of images, and their gradients. Each thread writes one element and gathers its inputs. No
// element is written by several threads, so sums are reproducible. Sums are f64.

#include "worker/targets/cuda/kernels/device.h"
#include "worker/targets/cuda/kernels/image_arguments.h"

namespace torch_remote::worker::cuda {
namespace {

constexpr int kThreads = 256;

struct Point {
  i64 batch, channel;
  i64 space[3];
};

__device__ Point point_of(i64 item, i64 channels, const i64* sizes) {
  Point point;
  for (int d = 2; d >= 0; --d) {
    const i64 rest = divide(item, sizes[d]);
    point.space[d] = item - rest * sizes[d];
    item = rest;
  }
  point.batch = divide(item, channels);
  point.channel = item - point.batch * channels;
  return point;
}
__device__ i64 base_of(const ImageView& view, const Point& point) {
  return point.batch * view.strides[0] + point.channel * view.strides[1];
}
__device__ i64 offset_in(const ImageView& view, const Point& point) {
  i64 at = base_of(view, point);
  for (int d = 0; d < 3; ++d) at += point.space[d] * view.strides[d + 2];
  return at;
}

// -- pooling

struct Range {
  i64 begin, end;
};

// The range of the large image in a window; step_of returns the distance of its points.
__device__ Range window(const PoolArguments& pool, int d, i64 at) {
  if (pool.adaptive != 0) {
    const i64 large = pool.large_sizes[d], small = pool.small_sizes[d];
    return {divide(at * large, small), divide((at + 1) * large + small - 1, small)};
  }
  i64 begin = at * pool.stride[d] - pool.padding[d];
  i64 end = begin + (pool.kernel[d] - 1) * pool.dilation[d] + 1;
  if (end > pool.large_sizes[d]) end = pool.large_sizes[d];
  if (begin < 0) begin += divide(-begin + pool.dilation[d] - 1, pool.dilation[d]) * pool.dilation[d];
  return {begin, end};
}
__device__ i64 step_of(const PoolArguments& pool, int d) { return pool.adaptive != 0 ? 1 : pool.dilation[d]; }

// The windows that may contain a point.
__device__ Range windows_of(const PoolArguments& pool, int d, i64 at) {
  const i64 large = pool.large_sizes[d], small = pool.small_sizes[d];
  Range range;
  if (pool.adaptive != 0) {
    range = {divide(at * small, large), divide((at + 1) * small + large - 1, large)};
  } else {
    const i64 last = at + pool.padding[d], first = last - (pool.kernel[d] - 1) * pool.dilation[d];
    range = {first <= 0 ? 0 : divide(first + pool.stride[d] - 1, pool.stride[d]), divide(last, pool.stride[d]) + 1};
  }
  if (range.end > small) range.end = small;
  return range;
}

// The divisor for a window's sum.
__device__ double divisor_of(const PoolArguments& pool, const i64* at) {
  if (pool.divisor != 0) return static_cast<double>(pool.divisor);
  double divisor = 1;
  for (int d = 0; d < 3; ++d) {
    const Range inside = window(pool, d, at[d]);
    i64 size = inside.end - inside.begin;
    if (pool.counts_padding != 0) {
      const i64 begin = at[d] * pool.stride[d] - pool.padding[d];
      const i64 end = begin + pool.kernel[d], most = pool.large_sizes[d] + pool.padding[d];
      size = (end < most ? end : most) - begin;
    }
    divisor *= static_cast<double>(size);
  }
  return divisor;
}

template <typename F>
__device__ void for_each_point(const Range* ranges, const i64* steps, F&& f) {
  for (i64 z = ranges[0].begin; z < ranges[0].end; z += steps[0]) {
    for (i64 y = ranges[1].begin; y < ranges[1].end; y += steps[1]) {
      for (i64 x = ranges[2].begin; x < ranges[2].end; x += steps[2]) f(z, y, x);
    }
  }
}

__device__ void pool_forward(const PoolArguments& pool, bool most) {
  const i64* const small = pool.small_sizes;
  const i64 count = pool.batch * pool.channels * small[0] * small[1] * small[2];
  for (i64 item = first_item(); item < count; item += all_threads()) {
    const Point point = point_of(item, pool.channels, small);
    Range ranges[3];
    i64 steps[3];
    for (int d = 0; d < 3; ++d) {
      ranges[d] = window(pool, d, point.space[d]);
      steps[d] = step_of(pool, d);
    }
    const i64 base = base_of(pool.large, point);
    const i64* const strides = pool.large.strides;
    const i64* const large = pool.large_sizes;
    double sum = 0, best = -__builtin_inf();
    i64 position = (ranges[0].begin * large[1] + ranges[1].begin) * large[2] + ranges[2].begin;
    for_each_point(ranges, steps, [&](i64 z, i64 y, i64 x) {
      const double value =
          load_float(pool.large.address, base + z * strides[2] + y * strides[3] + x * strides[4], pool.dtype);
      sum += value;
      if (value > best || value != value) {  // The first maximum, or the last NaN.
        best = value;
        position = (z * large[1] + y) * large[2] + x;
      }
    });
    store_float(pool.small.address, offset_in(pool.small, point), pool.dtype,
                most ? best : sum / divisor_of(pool, point.space));
    if (most && pool.positions.address != 0)
      pointer<i64>(pool.positions.address)[offset_in(pool.positions, point)] = position;
  }
}

__device__ void pool_backward(const PoolArguments& pool, bool most) {
  const i64* const large = pool.large_sizes;
  const i64 count = pool.batch * pool.channels * large[0] * large[1] * large[2];
  constexpr i64 kSteps[3] = {1, 1, 1};
  for (i64 item = first_item(); item < count; item += all_threads()) {
    const Point point = point_of(item, pool.channels, large);
    Range ranges[3];
    for (int d = 0; d < 3; ++d) ranges[d] = windows_of(pool, d, point.space[d]);
    const i64 own = (point.space[0] * large[1] + point.space[1]) * large[2] + point.space[2];
    double sum = 0;
    for_each_point(ranges, kSteps, [&](i64 z, i64 y, i64 x) {
      const i64 at[3] = {z, y, x};
      Point there = point;
      for (int d = 0; d < 3; ++d) there.space[d] = at[d];
      if (most) {
        if (pointer<const i64>(pool.positions.address)[offset_in(pool.positions, there)] != own) return;
        sum += load_float(pool.small.address, offset_in(pool.small, there), pool.dtype);
        return;
      }
      for (int d = 0; d < 3; ++d) {
        const Range inside = window(pool, d, at[d]);
        if (point.space[d] < inside.begin || point.space[d] >= inside.end) return;
      }
      sum += load_float(pool.small.address, offset_in(pool.small, there), pool.dtype) / divisor_of(pool, at);
    });
    store_float(pool.large.address, offset_in(pool.large, point), pool.dtype, sum);
  }
}

// -- windows

// The window whose position `at` is at that point of a dim; -1: there is none.
__device__ i64 window_of(const FoldArguments& fold, int d, i64 point, i64 at) {
  const i64 begin = point + fold.padding[d] - at * fold.dilation[d];
  if (begin < 0) return -1;
  const i64 window = divide(begin, fold.stride[d]);
  return window * fold.stride[d] == begin && window < fold.windows[d] ? window : -1;
}

__device__ double sum_of_windows(const FoldArguments& fold, const Point& point) {
  double sum = 0;
  for (i64 y = 0; y < fold.kernel[0]; ++y) {
    const i64 row = window_of(fold, 0, point.space[1], y);
    if (row < 0) continue;
    for (i64 x = 0; x < fold.kernel[1]; ++x) {
      const i64 column = window_of(fold, 1, point.space[2], x);
      if (column < 0) continue;
      const i64 position = (point.channel * fold.kernel[0] + y) * fold.kernel[1] + x;
      const i64 at = point.batch * fold.column_strides[0] + position * fold.column_strides[1] +
                     (row * fold.windows[1] + column) * fold.column_strides[2];
      sum += load_float(fold.columns, at, fold.dtype);
    }
  }
  return sum;
}

// -- resampling

struct Taps {
  int count;
  i64 positions[4];
  double weights[4];
};

__device__ double floor_of(double x) { return __builtin_floor(x); }

// Cubic convolution, with torch's coefficient.
__device__ double near(double x) { return ((-0.75 + 2) * x - (-0.75 + 3)) * x * x + 1; }
__device__ double far(double x) { return ((-0.75 * x - 5 * -0.75) * x + 8 * -0.75) * x - 4 * -0.75; }

__device__ double source_of(const ResampleArguments& arguments, int d, i64 at) {
  if (arguments.align_corners != 0) return arguments.scales[d] * static_cast<double>(at);
  return arguments.scales[d] * (static_cast<double>(at) + 0.5) - 0.5;
}

__device__ Taps taps_of(const ResampleArguments& arguments, int d, i64 at) {
  const i64 size = arguments.in_sizes[d];
  Taps taps = {1, {0, 0, 0, 0}, {1, 0, 0, 0}};
  const auto inside = [&](i64 position) { return position < 0 ? 0 : position >= size ? size - 1 : position; };
  switch (arguments.how) {
    case Resample::kNearest:
    case Resample::kNearestExact: {  // Computed in f32, as torch does.
      const auto scale = static_cast<float>(arguments.scales[d]);
      const float shift = arguments.how == Resample::kNearestExact ? 0.5f : 0.0f;
      taps.positions[0] = inside(static_cast<i64>(__builtin_floorf((static_cast<float>(at) + shift) * scale)));
      return taps;
    }
    case Resample::kReflect: {
      i64 position = at - arguments.before[d];
      if (position < 0) position = -position;
      if (position >= size) position = 2 * (size - 1) - position;
      taps.positions[0] = inside(position);
      return taps;
    }
    case Resample::kReplicate:
      taps.positions[0] = inside(at - arguments.before[d]);
      return taps;
    default:
      break;
  }
  double source = source_of(arguments, d, at);
  if (arguments.how == Resample::kLinear) {
    if (source < 0) source = 0;
    const i64 first = inside(static_cast<i64>(source));
    const double rest = source - static_cast<double>(first);
    return {2, {first, inside(first + 1), 0, 0}, {1 - rest, rest, 0, 0}};
  }
  const double whole = floor_of(source), t = source - whole;
  const auto first = static_cast<i64>(whole);
  return {4,
          {inside(first - 1), inside(first), inside(first + 1), inside(first + 2)},
          {far(t + 1), near(t), near(1 - t), far(2 - t)}};
}

// The range of output points that may use an input point.
__device__ Range takers_of(const ResampleArguments& arguments, int d, i64 at) {
  const i64 in = arguments.in_sizes[d], out = arguments.out_sizes[d];
  Range range = {0, out};
  const double scale = arguments.scales[d];
  if (arguments.how == Resample::kReplicate || arguments.how == Resample::kReflect) {
    // Reflection adds points at both ends; they are few.
    const i64 before = arguments.before[d];
    const bool at_edge = at == 0 || at == in - 1 ||
                         (arguments.how == Resample::kReflect && (at <= before || at >= in - 1 - (out - in - before)));
    if (!at_edge) range = {at + before, at + before + 1};
  } else if (scale > 0) {
    const double reach = arguments.how == Resample::kCubic ? 3 : 2;
    const auto position = static_cast<double>(at);
    if (at != 0) range.begin = static_cast<i64>(floor_of((position - reach) / scale)) - 1;
    if (at != in - 1) range.end = static_cast<i64>(floor_of((position + reach) / scale)) + 2;
  }
  if (range.begin < 0) range.begin = 0;
  if (range.end > out) range.end = out;
  return range;
}

__device__ double weight_of(const Taps& taps, i64 position) {
  double weight = 0;
  for (int i = 0; i < taps.count; ++i) weight += taps.positions[i] == position ? taps.weights[i] : 0;
  return weight;
}

__device__ void resample_forward(const ResampleArguments& arguments) {
  const i64* const out = arguments.out_sizes;
  const i64* const strides = arguments.in.strides;
  const i64 count = arguments.batch * arguments.channels * out[0] * out[1] * out[2];
  for (i64 item = first_item(); item < count; item += all_threads()) {
    const Point point = point_of(item, arguments.channels, out);
    Taps taps[3];
    for (int d = 0; d < 3; ++d) taps[d] = taps_of(arguments, d, point.space[d]);
    const i64 base = base_of(arguments.in, point);
    const auto value_at = [&](int z, int y, int x) {
      return load_float(arguments.in.address,
                        base + taps[0].positions[z] * strides[2] + taps[1].positions[y] * strides[3] +
                            taps[2].positions[x] * strides[4],
                        arguments.dtype);
    };
    double sum = 0;
    if (taps[0].count == 1) {  // Copied without a weight.
      sum = value_at(0, 0, 0);
    } else {
      for (int z = 0; z < taps[0].count; ++z) {
        for (int y = 0; y < taps[1].count; ++y) {
          const double weight = taps[0].weights[z] * taps[1].weights[y];
          if (weight == 0) continue;
          for (int x = 0; x < taps[2].count; ++x) {
            if (taps[2].weights[x] != 0) sum += weight * taps[2].weights[x] * value_at(z, y, x);
          }
        }
      }
    }
    store_float(arguments.out.address, offset_in(arguments.out, point), arguments.dtype, sum);
  }
}

// `in` is written: the gradient of the input.
__device__ void resample_backward(const ResampleArguments& arguments) {
  const i64* const in = arguments.in_sizes;
  const i64* const strides = arguments.out.strides;
  const i64 count = arguments.batch * arguments.channels * in[0] * in[1] * in[2];
  for (i64 item = first_item(); item < count; item += all_threads()) {
    const Point point = point_of(item, arguments.channels, in);
    Range ranges[3];
    for (int d = 0; d < 3; ++d) ranges[d] = takers_of(arguments, d, point.space[d]);
    const i64 base = base_of(arguments.out, point);
    double sum = 0;
    for (i64 z = ranges[0].begin; z < ranges[0].end; ++z) {
      const double weight_z = weight_of(taps_of(arguments, 0, z), point.space[0]);
      if (weight_z == 0) continue;
      for (i64 y = ranges[1].begin; y < ranges[1].end; ++y) {
        const double weight_y = weight_z * weight_of(taps_of(arguments, 1, y), point.space[1]);
        if (weight_y == 0) continue;
        for (i64 x = ranges[2].begin; x < ranges[2].end; ++x) {
          const double weight = weight_y * weight_of(taps_of(arguments, 2, x), point.space[2]);
          if (weight == 0) continue;
          sum += weight * load_float(arguments.out.address, base + z * strides[2] + y * strides[3] + x * strides[4],
                                     arguments.dtype);
        }
      }
    }
    store_float(arguments.in.address, offset_in(arguments.in, point), arguments.dtype, sum);
  }
}

// -- Resampling with filters (antialias)

__device__ double filter(Resample how, double x) {
  if (x < 0) x = -x;
  if (how == Resample::kTriangle) return x < 1 ? 1 - x : 0;
  if (x < 1) return (1.5 * x - 2.5) * x * x + 1;
  return x < 2 ? ((-0.5 * x + 2.5) * x - 4) * x + 2 : 0;
}

// The input points of one output point, and the parameters of their weights.
struct Filter {
  Range range;
  double center, narrow, sum;
};

__device__ double weight_of(const ResampleArguments& arguments, const Filter& filter_, i64 at) {
  const double apart = (static_cast<double>(at) - filter_.center + 0.5) * filter_.narrow;
  return filter(arguments.how, apart) / filter_.sum;
}

__device__ double reach_of(const ResampleArguments& arguments, int d) {
  const double each = arguments.how == Resample::kTriangle ? 1 : 2, scale = arguments.scales[d];
  return scale >= 1 ? each * scale : each;
}

__device__ Filter filter_of(const ResampleArguments& arguments, int d, i64 at) {
  const i64 size = arguments.in_sizes[d];
  const double scale = arguments.scales[d], reach = reach_of(arguments, d);
  Filter made = {{0, 1}, 0.5, 1, 1};
  if (d == 0) return made;  // Images have two space dims.
  made.center = scale * (static_cast<double>(at) + 0.5);
  made.narrow = scale >= 1 ? 1 / scale : 1;
  const auto begin = static_cast<i64>(made.center - reach + 0.5), end = static_cast<i64>(made.center + reach + 0.5);
  made.range = {begin < 0 ? 0 : begin, end > size ? size : end};
  double sum = 0;
  for (i64 position = made.range.begin; position < made.range.end; ++position)
    sum += weight_of(arguments, made, position);
  if (sum != 0) made.sum = sum;
  return made;
}

__device__ void filter_forward(const ResampleArguments& arguments) {
  const i64* const out = arguments.out_sizes;
  const i64* const strides = arguments.in.strides;
  const i64 count = arguments.batch * arguments.channels * out[1] * out[2];
  for (i64 item = first_item(); item < count; item += all_threads()) {
    const Point point = point_of(item, arguments.channels, out);
    const Filter rows = filter_of(arguments, 1, point.space[1]), columns = filter_of(arguments, 2, point.space[2]);
    const i64 base = base_of(arguments.in, point);
    double sum = 0;
    for (i64 y = rows.range.begin; y < rows.range.end; ++y) {
      double row = 0;
      for (i64 x = columns.range.begin; x < columns.range.end; ++x) {
        row += weight_of(arguments, columns, x) *
               load_float(arguments.in.address, base + y * strides[3] + x * strides[4], arguments.dtype);
      }
      sum += weight_of(arguments, rows, y) * row;
    }
    store_float(arguments.out.address, offset_in(arguments.out, point), arguments.dtype, sum);
  }
}

// The range of output points whose filters may contain an input point.
__device__ Range filters_at(const ResampleArguments& arguments, int d, i64 at) {
  const double reach = reach_of(arguments, d) + 1, scale = arguments.scales[d];
  Range range = {0, arguments.out_sizes[d]};
  if (scale <= 0) return range;
  const auto begin = static_cast<i64>((static_cast<double>(at) - reach) / scale) - 1;
  const auto end = static_cast<i64>((static_cast<double>(at) + reach + 1) / scale) + 2;
  if (begin > 0) range.begin = begin;
  if (end < range.end) range.end = end;
  return range;
}

__device__ void filter_backward(const ResampleArguments& arguments) {
  const i64* const in = arguments.in_sizes;
  const i64* const strides = arguments.out.strides;
  const i64 count = arguments.batch * arguments.channels * in[1] * in[2];
  for (i64 item = first_item(); item < count; item += all_threads()) {
    const Point point = point_of(item, arguments.channels, in);
    const Range rows = filters_at(arguments, 1, point.space[1]), columns = filters_at(arguments, 2, point.space[2]);
    const i64 base = base_of(arguments.out, point);
    double sum = 0;
    for (i64 y = rows.begin; y < rows.end; ++y) {
      const Filter of_row = filter_of(arguments, 1, y);
      if (point.space[1] < of_row.range.begin || point.space[1] >= of_row.range.end) continue;
      const double weight = weight_of(arguments, of_row, point.space[1]);
      for (i64 x = columns.begin; x < columns.end; ++x) {
        const Filter of_column = filter_of(arguments, 2, x);
        if (point.space[2] < of_column.range.begin || point.space[2] >= of_column.range.end) continue;
        sum += weight * weight_of(arguments, of_column, point.space[2]) *
               load_float(arguments.out.address, base + y * strides[3] + x * strides[4], arguments.dtype);
      }
    }
    store_float(arguments.in.address, offset_in(arguments.in, point), arguments.dtype, sum);
  }
}

}  // namespace

KERNEL(kThreads) image_max(const PoolArguments pool) { pool_forward(pool, true); }
KERNEL(kThreads) image_max_backward(const PoolArguments pool) { pool_backward(pool, true); }
KERNEL(kThreads) image_mean(const PoolArguments pool) { pool_forward(pool, false); }
KERNEL(kThreads) image_mean_backward(const PoolArguments pool) { pool_backward(pool, false); }
KERNEL(kThreads) image_resample(const ResampleArguments arguments) { resample_forward(arguments); }
KERNEL(kThreads) image_resample_backward(const ResampleArguments arguments) { resample_backward(arguments); }
KERNEL(kThreads) image_filter(const ResampleArguments arguments) { filter_forward(arguments); }
KERNEL(kThreads) image_filter_backward(const ResampleArguments arguments) { filter_backward(arguments); }

KERNEL(kThreads) image_fold(const FoldArguments fold) {
  const i64 count = fold.batch * fold.channels * fold.sizes[1] * fold.sizes[2];
  for (i64 item = first_item(); item < count; item += all_threads()) {
    const Point point = point_of(item, fold.channels, fold.sizes);
    store_float(fold.image.address, offset_in(fold.image, point), fold.dtype, sum_of_windows(fold, point));
  }
}

}  // namespace torch_remote::worker::cuda
