#pragma once

#include "worker/targets/cuda/kernels/image_arguments.h"

// What the kernels of grid.cu are called with, as arguments.h has it.
namespace torch_remote::worker::cuda {

// As torch numbers them.
enum class GridInterpolation : i64 { kLinear, kNearest, kCubic };
enum class GridPadding : i64 { kZeros, kBorder, kReflection };

// Images are sampled at the points of a grid [batch, three dims of space, coordinates], whose coordinates are x, y and
// z.
struct GridArguments {
  ImageView in = {}, out = {};  // out: backward, its gradient
  u64 grid = 0;
  u64 grad_grid = 0, places = 0, values = 0;  // backward: packed, of what is written
  i64 grid_strides[5] = {};
  i64 batch = 1, channels = 1;
  i64 in_sizes[3] = {1, 1, 1}, out_sizes[3] = {1, 1, 1};
  i64 space = 2;  // dims of it, the last ones of three
  i64 taps = 1;   // points of the image that one of the grid takes
  i64 dtype = 0, value_dtype = 0;
  GridInterpolation interpolation = GridInterpolation::kLinear;
  GridPadding padding = GridPadding::kZeros;
  i64 align_corners = 0;
};

}  // namespace torch_remote::worker::cuda
