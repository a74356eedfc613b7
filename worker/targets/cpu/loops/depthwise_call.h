#pragma once

#include <cstdint>

// Convolutions of each channel alone, in f32: one plane at a time. Compiled for two levels of x86-64
// (depthwise_loops.h); who calls it chooses.
namespace torch_remote::worker::aten {

struct DepthwiseDim {
  int64_t input = 1, output = 1, kernel = 1, stride = 1, padding = 0, dilation = 1;
};

struct DepthwiseCall {
  DepthwiseDim height, width;  // elements of a row are neighbours, rows lie one behind the other
};

// Kernels that are wider are not taken.
inline constexpr int64_t kMostDepthwiseColumns = 32;

struct DepthwiseLoops {
  // Floats that the others work in, of a plane.
  int64_t (*scratch)(const DepthwiseCall& call);
  // output = bias + the convolution of the input with the kernel, which is finite, in steps of one.
  void (*convolve)(const DepthwiseCall& call, const float* input, const float* kernel, float bias, float* output,
                   float* scratch);
  // Floats of the sums of a kernel's gradient, some for each element: what `add` adds a plane's share to, and `fold`
  // adds to the gradient itself and clears. They may be of several planes. `add` says whether all of grad_output is
  // finite; else sums are NaN that should not be: zeros around the input count.
  int64_t (*sums)(const DepthwiseCall& call);
  bool (*add)(const DepthwiseCall& call, const float* input, const float* grad_output, float* sums, float* scratch);
  void (*fold)(const DepthwiseCall& call, float* sums, double* gradient);
};

extern const DepthwiseLoops kDepthwiseV3;  // AVX2, FMA
extern const DepthwiseLoops kDepthwiseV4;  // AVX-512

}  // namespace torch_remote::worker::aten
