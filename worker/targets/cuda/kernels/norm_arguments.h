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

// Gradients of layer norm. Rows [rows, length] are packed, and of one dtype; statistics are each row's.
struct LayerNormGradientArguments {
  u64 grad = 0, input = 0, mean = 0, rstd = 0, weight = 0;  // weight may be none
  u64 sums = 0;                                             // f64, [parts, length]: of products and of grads
  u64 grad_input = 0, grad_weight = 0, grad_bias = 0;       // each may be none
  i64 rows = 0, length = 0, parts = 1;                      // rows are added up in so many parts
  i64 dtype = 0, weight_dtype = 0, stat_dtype = 0;
};

// Channels of images [batch, channels, space], packed. Statistics are each channel's; those that run are changed. What
// is not there is 0.
struct BatchNormArguments {
  u64 input = 0, weight = 0, bias = 0, running_mean = 0, running_var = 0;
  u64 out = 0, mean = 0, rstd = 0;                               // mean, rstd: made, or, backward, read
  u64 grad = 0, grad_input = 0, grad_weight = 0, grad_bias = 0;  // backward
  i64 batch = 1, channels = 0, space = 1;
  i64 dtype = 0, weight_dtype = 0, running_dtype = 0, stat_dtype = 0;
  i64 trains = 0;
  double momentum = 0, epsilon = 0;
};

}  // namespace torch_remote::worker::cuda
