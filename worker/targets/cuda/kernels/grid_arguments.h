#pragma once

#include "worker/targets/cuda/kernels/image_arguments.h"

// The arguments of the kernels in grid.cu; see arguments.h.
namespace torch_remote::worker::cuda {

// The numbers are torch's.
enum class GridInterpolation : i64 { kLinear, kNearest, kCubic };
enum class GridPadding : i64 { kZeros, kBorder, kReflection };

// Images are sampled at the points of a grid [batch, three space dims, coordinates]. Coordinates are x, y and z.
struct GridArguments {
  ImageView in = {}, out = {};  // In the backward pass, `out` is the gradient of the output.
  u64 grid = 0;
  // Backward, all contiguous. grad_grid: the gradient of the grid. positions [grid point, tap]: the index of the image
  // point. values [grid point, tap, channel]: what the grid point adds to the gradient of that image point.
  u64 grad_grid = 0, positions = 0, values = 0;
  i64 grid_strides[5] = {};
  i64 batch = 1, channels = 1;
  i64 in_sizes[3] = {1, 1, 1}, out_sizes[3] = {1, 1, 1};
  i64 space = 2;  // Space dims, the last ones of three.
  i64 taps = 1;   // Image points per grid point.
  i64 dtype = 0, value_dtype = 0;
  GridInterpolation interpolation = GridInterpolation::kLinear;
  GridPadding padding = GridPadding::kZeros;
  i64 align_corners = 0;
};

}  // namespace torch_remote::worker::cuda
