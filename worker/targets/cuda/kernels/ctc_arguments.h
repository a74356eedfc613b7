#pragma once

// What the kernels of ctc.cu are called with, as arguments.h has it.
namespace torch_remote::worker::cuda {

using i64 = long;
using u64 = unsigned long;

// Scores [time, batch, classes] of logarithms; targets [batch, labels], or all side by side (target_stride 0). Lengths
// are i64, one of each batch. Alpha is packed [batch, time, states]: a state is a label, or the blank beside one.
struct CtcArguments {
  u64 scores = 0, targets = 0, score_lengths = 0, target_lengths = 0;
  u64 loss = 0, alpha = 0;
  u64 grad = 0, out = 0, beta = 0;  // backward; out: packed, as scores; beta: f64 [batch, 2, states]
  i64 score_strides[3] = {};
  i64 target_stride = 0, grad_stride = 0;
  i64 time = 0, batch = 0, classes = 0, states = 0;
  i64 blank = 0, zero_infinity = 0, dtype = 0;
};

}  // namespace torch_remote::worker::cuda
