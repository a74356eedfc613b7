#pragma once

// The arguments of the kernels in image.cu; see arguments.h.
namespace torch_remote::worker::cuda {

using i64 = long;
using u64 = unsigned long;

// Images are [batch, channels, three space dims]; missing space dims come first, with size 1.
struct ImageView {
  u64 address = 0;
  i64 strides[5] = {};
};

// Pooling windows of the large image, one per point of the small image.
struct PoolArguments {
  // positions: i64 positions of maxima in the large image's space; may be absent.
  ImageView large = {}, small = {}, positions = {};
  i64 batch = 1, channels = 1;
  i64 large_sizes[3] = {1, 1, 1}, small_sizes[3] = {1, 1, 1};
  i64 kernel[3] = {1, 1, 1}, stride[3] = {1, 1, 1}, padding[3] = {}, dilation[3] = {1, 1, 1};
  i64 adaptive = 0;  // The large image is divided evenly; the lists are unused.
  i64 counts_padding = 0, divisor = 0;
  i64 dtype = 0;
};

// How an output point uses input points along each dim: at most 4, with weights. The last two kinds use all input
// points within a filter's width.
enum class Resample : i64 { kNearest, kNearestExact, kLinear, kCubic, kReflect, kReplicate, kTriangle, kCubicFilter };
struct ResampleArguments {
  ImageView in = {}, out = {};
  i64 batch = 1, channels = 1;
  i64 in_sizes[3] = {1, 1, 1}, out_sizes[3] = {1, 1, 1};
  double scales[3] = {1, 1, 1};  // Interpolation: the number of input points per output point.
  i64 before[3] = {};            // Padding before the input; negative: cropped.
  Resample how = Resample::kNearest;
  i64 align_corners = 0;
  i64 dtype = 0;
};

// Sums of windows, which are given as columns. For each position in a window (rows first) there is one element per
// window.
struct FoldArguments {
  ImageView image = {};  // Written; two space dims.
  u64 columns = 0;
  i64 column_strides[3] = {};  // Batch; channel and position in a window; window.
  i64 batch = 1, channels = 1;
  i64 sizes[3] = {1, 1, 1}, windows[2] = {};
  i64 kernel[2] = {}, stride[2] = {}, padding[2] = {}, dilation[2] = {};
  i64 dtype = 0;
};

}  // namespace torch_remote::worker::cuda
