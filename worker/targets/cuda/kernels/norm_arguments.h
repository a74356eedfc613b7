#pragma once

// The arguments of the kernels in norm.cu; see arguments.h.
namespace torch_remote::worker::cuda {

using i64 = long;
using u64 = unsigned long;

// Gradients of group norm. Images are contiguous: [batch, groups * channels, space].
struct GroupNormArguments {
  u64 grad = 0, input = 0, mean = 0, rstd = 0, weight = 0;  // weight may be 0.
  u64 sums = 0;  // f64: for each image and channel, the sums of grad * input and of grad.
  u64 grad_input = 0, grad_weight = 0, grad_bias = 0;  // Each may be 0.
  i64 batch = 0, groups = 1, channels = 1, space = 1;  // channels: per group.
  i64 dtype = 0, weight_dtype = 0, stat_dtype = 0, grad_weight_dtype = 0;
};

// Gradients of layer norm. Rows [rows, length] are contiguous, and of one dtype; there is one mean and rstd per row.
struct LayerNormGradientArguments {
  u64 grad = 0, input = 0, mean = 0, rstd = 0, weight = 0;  // weight may be 0.
  u64 sums = 0;                                             // f64, [parts, length]: sums of products and of grads.
  u64 grad_input = 0, grad_weight = 0, grad_bias = 0;       // Each may be 0.
  i64 rows = 0, length = 0, parts = 1;                      // Rows are summed in this many parts.
  i64 dtype = 0, weight_dtype = 0, stat_dtype = 0;
};

// Batch norm of contiguous images [batch, channels, space], with statistics per channel. In training mode, running
// statistics are updated. Absent tensors are 0.
struct BatchNormArguments {
  u64 input = 0, weight = 0, bias = 0, running_mean = 0, running_var = 0;
  u64 out = 0, mean = 0, rstd = 0;                               // mean, rstd: written; in the backward pass read.
  u64 grad = 0, grad_input = 0, grad_weight = 0, grad_bias = 0;  // Backward.
  i64 batch = 1, channels = 0, space = 1;
  i64 dtype = 0, weight_dtype = 0, running_dtype = 0, stat_dtype = 0;
  i64 trains = 0;
  double momentum = 0, epsilon = 0;
};

}  // namespace torch_remote::worker::cuda
