// Images sampled at the points of a grid (grid_sample), and the gradients. The taps of a grid point are the product of
// a few weighted positions along each dim.

#include "worker/targets/cuda/kernels/device.h"
#include "worker/targets/cuda/kernels/grid_arguments.h"

namespace torch_remote::worker::cuda {
namespace {

constexpr int kThreads = 256;

// A coordinate clamped to the image, and its derivative by the original coordinate.
struct Inside {
  double at, slope;
};

__device__ Inside clip(double at, i64 size) {
  const auto last = static_cast<double>(size - 1);
  if (!(at > 0)) return {0, 0};
  if (at >= last) return {last, 0};
  return {at, 1};
}

__device__ Inside reflect(double at, double low, double high) {
  if (low == high) return {0, 0};
  const double span = high - low;
  double slope = 1, from = at - low;
  if (from < 0) {
    from = -from;
    slope = -1;
  }
  const double turns = __builtin_floor(from / span), rest = from - turns * span;
  if (__builtin_floor(turns / 2) * 2 == turns) return {rest + low, slope};
  return {span - rest + low, -slope};
}

__device__ Inside inside(const GridArguments& f, double at, i64 size) {
  if (f.padding == GridPadding::kZeros) return {at, 1};
  if (f.padding == GridPadding::kBorder) return clip(at, size);
  const auto last = static_cast<double>(size);
  const Inside reflected = f.align_corners != 0 ? reflect(at, 0, last - 1) : reflect(at, -0.5, last - 0.5);
  const Inside clipped = clip(reflected.at, size);
  return {clipped.at, clipped.slope * reflected.slope};
}

__device__ double near(double x) { return ((-0.75 + 2) * x - (-0.75 + 3)) * x * x + 1; }
__device__ double far(double x) { return ((-0.75 * x + 3.75) * x - 6) * x + 3; }
__device__ double near_slope(double x) { return (3 * 1.25 * x - 2 * 2.25) * x; }
__device__ double far_slope(double x) { return (-2.25 * x + 7.5) * x - 6; }

// The taps along one dim. A position outside of the image is -1.
struct Axis {
  int count;
  i64 positions[4];
  double weights[4], slopes[4];  // slopes: derivatives of the weights by the coordinate.
};

__device__ i64 position(double at, i64 size) {
  return at >= 0 && at < static_cast<double>(size) ? static_cast<i64>(at) : -1;
}

__device__ Axis axis(const GridArguments& f, double coordinate, i64 size) {
  const auto length = static_cast<double>(size);
  const bool corners = f.align_corners != 0;
  const double at = corners ? (coordinate + 1) / 2 * (length - 1) : ((coordinate + 1) * length - 1) / 2;
  const double step = corners ? (length - 1) / 2 : length / 2;
  Axis made = {1, {0, 0, 0, 0}, {1, 0, 0, 0}, {0, 0, 0, 0}};
  if (f.interpolation == GridInterpolation::kCubic) {
    const double whole = __builtin_floor(at), t = at - whole;
    made.count = 4;
    for (int k = 0; k < 4; ++k) made.positions[k] = position(inside(f, whole - 1 + k, size).at, size);
    made.weights[0] = far(t + 1);
    made.weights[1] = near(t);
    made.weights[2] = near(1 - t);
    made.weights[3] = far(2 - t);
    made.slopes[0] = far_slope(t + 1) * step;
    made.slopes[1] = near_slope(t) * step;
    made.slopes[2] = -near_slope(1 - t) * step;
    made.slopes[3] = -far_slope(2 - t) * step;
    return made;
  }
  const Inside in = inside(f, at, size);
  if (f.interpolation == GridInterpolation::kNearest) {
    made.positions[0] = position(__builtin_rint(in.at), size);
    return made;
  }
  const double whole = __builtin_floor(in.at), t = in.at - whole;
  made.count = 2;
  made.positions[0] = position(whole, size);
  made.positions[1] = position(whole + 1, size);
  made.weights[0] = 1 - t;
  made.weights[1] = t;
  made.slopes[0] = -in.slope * step;
  made.slopes[1] = in.slope * step;
  return made;
}

// The taps of a grid point along z, y and x; absent dims have one tap.
__device__ void axes(const GridArguments& f, i64 batch, const i64* at, Axis* made) {
  i64 from = batch * f.grid_strides[0];
  for (int d = 0; d < 3; ++d) from += at[d] * f.grid_strides[d + 1];
  for (int d = 0; d < 3; ++d) {
    made[d] = {1, {0, 0, 0, 0}, {1, 0, 0, 0}, {0, 0, 0, 0}};
    if (d < 3 - f.space) continue;
    made[d] = axis(f, load_float(f.grid, from + (2 - d) * f.grid_strides[4], f.dtype), f.in_sizes[d]);
  }
}

__device__ void point_of(const GridArguments& f, i64 item, i64* at, i64* batch) {
  for (int d = 2; d >= 0; --d) {
    const i64 rest = divide(item, f.out_sizes[d]);
    at[d] = item - rest * f.out_sizes[d];
    item = rest;
  }
  *batch = item;
}

template <typename F>
__device__ void for_each_tap(const Axis* axes, F&& f) {
  for (int z = 0; z < axes[0].count; ++z) {
    for (int y = 0; y < axes[1].count; ++y) {
      for (int x = 0; x < axes[2].count; ++x) {
        const bool there = axes[0].positions[z] >= 0 && axes[1].positions[y] >= 0 && axes[2].positions[x] >= 0;
        f(z, y, x, there);
      }
    }
  }
}

__device__ i64 offset_of(const ImageView& view, const Axis* axes, int z, int y, int x) {
  return axes[0].positions[z] * view.strides[2] + axes[1].positions[y] * view.strides[3] +
         axes[2].positions[x] * view.strides[4];
}
__device__ i64 offset_of(const ImageView& view, const i64* at) {
  return at[0] * view.strides[2] + at[1] * view.strides[3] + at[2] * view.strides[4];
}

}  // namespace

KERNEL(kThreads) grid_forward(const GridArguments f) {
  const i64 points = f.batch * f.out_sizes[0] * f.out_sizes[1] * f.out_sizes[2];
  for (i64 item = first_item(); item < points * f.channels; item += all_threads()) {
    const i64 channel = divide(item, points), point = item - channel * points;
    i64 at[3], batch = 0;
    point_of(f, point, at, &batch);
    Axis of[3];
    axes(f, batch, at, of);
    const i64 base = batch * f.in.strides[0] + channel * f.in.strides[1];
    double sum = 0;
    for_each_tap(of, [&](int z, int y, int x, bool there) {
      if (!there) return;
      sum += of[0].weights[z] * of[1].weights[y] * of[2].weights[x] *
             load_float(f.in.address, base + offset_of(f.in, of, z, y, x), f.dtype);
    });
    store_float(f.out.address, batch * f.out.strides[0] + channel * f.out.strides[1] + offset_of(f.out, at), f.dtype,
                sum);
  }
}

// The gradient of the grid's coordinates.
KERNEL(kThreads) grid_backward(const GridArguments f) {
  const i64 points = f.batch * f.out_sizes[0] * f.out_sizes[1] * f.out_sizes[2];
  for (i64 point = first_item(); point < points; point += all_threads()) {
    i64 at[3], batch = 0;
    point_of(f, point, at, &batch);
    Axis of[3];
    axes(f, batch, at, of);
    double sums[3] = {0, 0, 0};
    for (i64 channel = 0; channel < f.channels; ++channel) {
      const i64 out = batch * f.out.strides[0] + channel * f.out.strides[1] + offset_of(f.out, at);
      const double grad = load_float(f.out.address, out, f.dtype);
      const i64 base = batch * f.in.strides[0] + channel * f.in.strides[1];
      for_each_tap(of, [&](int z, int y, int x, bool there) {
        if (!there) return;
        const double value = grad * load_float(f.in.address, base + offset_of(f.in, of, z, y, x), f.dtype);
        sums[0] += value * of[0].slopes[z] * of[1].weights[y] * of[2].weights[x];
        sums[1] += value * of[0].weights[z] * of[1].slopes[y] * of[2].weights[x];
        sums[2] += value * of[0].weights[z] * of[1].weights[y] * of[2].slopes[x];
      });
    }
    for (i64 k = 0; k < f.space; ++k) store_float(f.grad_grid, point * f.space + k, f.dtype, sums[2 - k]);
  }
}

// The share of each image point in each grid point's gradient: positions [point, tap], values [point, tap, channel].
KERNEL(kThreads) grid_spread(const GridArguments f) {
  const i64 points = f.batch * f.out_sizes[0] * f.out_sizes[1] * f.out_sizes[2];
  for (i64 point = first_item(); point < points; point += all_threads()) {
    i64 at[3], batch = 0;
    point_of(f, point, at, &batch);
    Axis of[3];
    axes(f, batch, at, of);
    i64 tap = point * f.taps;
    for_each_tap(of, [&](int z, int y, int x, bool there) {
      i64 to = -1;
      if (there) {
        to = (of[0].positions[z] * f.in_sizes[1] + of[1].positions[y]) * f.in_sizes[2] + of[2].positions[x];
        const double weight = of[0].weights[z] * of[1].weights[y] * of[2].weights[x];
        for (i64 channel = 0; channel < f.channels; ++channel) {
          const i64 out = batch * f.out.strides[0] + channel * f.out.strides[1] + offset_of(f.out, at);
          store_float(f.values, tap * f.channels + channel, f.value_dtype,
                      weight * load_float(f.out.address, out, f.dtype));
        }
      }
      pointer<i64>(f.positions)[tap++] = to;
    });
  }
}

}  // namespace torch_remote::worker::cuda
