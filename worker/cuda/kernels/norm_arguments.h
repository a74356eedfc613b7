#pragma once

// What the kernels of norm.cu are called with, as arguments.h has it.
namespace torch_remote::worker::cuda {

using i64 = long;
using u64 = unsigned long;

// Gradients of group norm. Images are packed: [batch, groups * channels, space].
struct GroupNormArguments {
  u64 grad = 0, input = 0, mean = 0, rstd = 0, weight = 0;  // weight may be none
  u64 sums = 0;                                             // f64: of each image and channel, grad * input and grad
  u64 grad_input = 0, grad_weight = 0, grad_bias = 0;       // each may be none
  i64 batch = 0, groups = 1, channels = 1, space = 1;       // channels of a group
  i64 dtype = 0, weight_dtype = 0, stat_dtype = 0, grad_weight_dtype = 0;
};

}  // namespace torch_remote::worker::cuda
