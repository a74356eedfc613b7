#pragma once

#include <cstdint>

#include "worker/targets/cpu/loops/levels.h"

// Depthwise convolutions in f32, one plane at a time. Compiled for several instruction sets (depthwise_loops.cpp); the
// caller chooses one.
namespace torch_remote::worker::aten {

struct DepthwiseDim {
  int64_t input = 1, output = 1, kernel = 1, stride = 1, padding = 0, dilation = 1;
};

struct DepthwiseCall {
  DepthwiseDim height, width;  // planes are contiguous
};

// Bound on the kernel width.
inline constexpr int64_t kMaxDepthwiseKernel = 32;

struct DepthwiseLoops {
  // Floats of scratch memory for one plane.
  int64_t (*scratch)(const DepthwiseCall& call);
  // output = bias + the convolution of the input with the kernel, for strides of one. The kernel must be finite.
  void (*convolve)(const DepthwiseCall& call, const float* input, const float* kernel, float bias, float* output,
                   float* scratch);
  // `sums` returns the number of floats for the sums of a kernel's gradient, several per element. `add` adds a plane's
  // share to these sums; it is called for one or several planes. `fold` adds the sums to the gradient and clears them.
  // `add` returns false if some of grad_output is not finite. The sums are then unusable: grad_output times the zeros
  // around the input would give NaN.
  int64_t (*sums)(const DepthwiseCall& call);
  bool (*add)(const DepthwiseCall& call, const float* input, const float* grad_output, float* sums, float* scratch);
  void (*fold)(const DepthwiseCall& call, float* sums, double* gradient);
};

TORCH_REMOTE_LOOP_LEVELS(DepthwiseLoops, kDepthwise);

}  // namespace torch_remote::worker::aten
