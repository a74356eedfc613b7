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

// Maximum or average pooling, and its gradient. Each point of the small image has a window of points of the large
// image. The forward pass reads the large image and writes the small one; the backward pass does the reverse.
struct PoolArguments {
  // positions: for each point of the small image, the i64 row-major index of its maximum in the large image's space
  // dims. Address 0: absent.
  ImageView large = {}, small = {}, positions = {};
  i64 batch = 1, channels = 1;
  i64 large_sizes[3] = {1, 1, 1}, small_sizes[3] = {1, 1, 1};
  i64 kernel[3] = {1, 1, 1}, stride[3] = {1, 1, 1}, padding[3] = {}, dilation[3] = {1, 1, 1};
  // If set, the four lists are unused. Window i of a dim is then [floor(i * large / small), ceil((i + 1) * large /
  // small)).
  i64 adaptive = 0;
  // Average pooling. divisor: of each window's sum; 0: the number of its points, which includes padding if
  // `counts_padding` is set.
  i64 counts_padding = 0, divisor = 0;
  i64 dtype = 0;
};

// How an output point is computed. Along each dim, the first six kinds use at most 4 input points, with weights.
// kReflect and kReplicate are paddings, and the other four are interpolations. The last two kinds (antialias) use all
// input points within a filter's width, in two space dims.
enum class Resample : i64 { kNearest, kNearestExact, kLinear, kCubic, kReflect, kReplicate, kTriangle, kCubicFilter };
// The forward pass reads `in` and writes `out`. The backward pass reads the gradient of the output in `out`, and writes
// that of the input to `in`.
struct ResampleArguments {
  ImageView in = {}, out = {};
  i64 batch = 1, channels = 1;
  i64 in_sizes[3] = {1, 1, 1}, out_sizes[3] = {1, 1, 1};
  double scales[3] = {1, 1, 1};  // Interpolations and filters: the number of input points per output point.
  i64 before[3] = {};            // Paddings: points before the input; negative: cropped.
  Resample how = Resample::kNearest;
  i64 align_corners = 0;
  i64 dtype = 0;
};

// torch's fold (col2im): adds windows to an image. `columns` is [batch, channels * positions in a window, windows]. A
// window has kernel[0] * kernel[1] positions, and an image has windows[0] * windows[1] windows; both are in row-major
// order. Where windows overlap, their elements are added.
struct FoldArguments {
  ImageView image = {};  // Written; two space dims.
  u64 columns = 0;
  i64 column_strides[3] = {};  // strides along the three dims of `columns`
  i64 batch = 1, channels = 1;
  i64 sizes[3] = {1, 1, 1}, windows[2] = {};
  i64 kernel[2] = {}, stride[2] = {}, padding[2] = {}, dilation[2] = {};
  i64 dtype = 0;
};

}  // namespace torch_remote::worker::cuda
