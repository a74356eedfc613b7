#pragma once

// What the kernels of image.cu are called with, as arguments.h has it.
namespace torch_remote::worker::cuda {

using i64 = long;
using u64 = unsigned long;

// Images are [batch, channels, three dims of space]; those with fewer dims of space have others of size 1 before them.
struct ImageView {
  u64 address = 0;
  i64 strides[5] = {};
};

// Windows of the large side, one for each point of the small one.
struct PoolArguments {
  ImageView large = {}, small = {}, places = {};  // places: i64, of maxima in the large side's space; may be none
  i64 batch = 1, channels = 1;
  i64 large_sizes[3] = {1, 1, 1}, small_sizes[3] = {1, 1, 1};
  i64 kernel[3] = {1, 1, 1}, stride[3] = {1, 1, 1}, padding[3] = {}, dilation[3] = {1, 1, 1};
  i64 adaptive = 0;  // windows are shares of the large side, and the lists of no meaning
  i64 counts_padding = 0, divisor = 0;
  i64 dtype = 0;
};

// How a point of the output takes points of the input, along each dim: with weights, at most 4 of them.
// The last two take as many as a step between points of the output has, weighted by a filter.
enum class Resample : i64 { kNearest, kNearestExact, kLinear, kCubic, kReflect, kReplicate, kTriangle, kCubicFilter };
struct ResampleArguments {
  ImageView in = {}, out = {};
  i64 batch = 1, channels = 1;
  i64 in_sizes[3] = {1, 1, 1}, out_sizes[3] = {1, 1, 1};
  double scales[3] = {1, 1, 1};  // of interpolation: points of the input for each of the output
  i64 before[3] = {};            // of padding; negative: cropped
  Resample how = Resample::kNearest;
  i64 align_corners = 0;
  i64 dtype = 0;
};

// Sums of windows, which are columns: of each place in a window (rows of it first) one element for each window.
struct FoldArguments {
  ImageView image = {};  // written; of two dims of space
  u64 columns = 0;
  i64 column_strides[3] = {};  // batch, channel and place in a window, window
  i64 batch = 1, channels = 1;
  i64 sizes[3] = {1, 1, 1}, windows[2] = {};
  i64 kernel[2] = {}, stride[2] = {}, padding[2] = {}, dilation[2] = {};
  i64 dtype = 0;
};

}  // namespace torch_remote::worker::cuda
