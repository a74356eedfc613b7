#pragma once

// The arguments of the kernels in ctc.cu; see arguments.h.
namespace torch_remote::worker::cuda {

using i64 = long;
using u64 = unsigned long;

// Scores are log probabilities [time, batch, classes]. Targets are [batch, labels], or concatenated (target_stride 0).
// A sequence whose lengths or labels are out of bounds is a failure.
// Lengths are i64, one per sequence. Alpha is [batch, time, states], contiguous; a state is a label, or a blank next to
// one.
struct CtcArguments {
  u64 scores = 0, targets = 0, score_lengths = 0, target_lengths = 0;
  u64 loss = 0, alpha = 0;
  u64 grad = 0, out = 0, beta = 0;  // Backward; out: contiguous, sizes of scores; beta: f64 [batch, 2, states].
  i64 score_strides[3] = {};
  u64 failure = 0;
  i64 target_stride = 0, grad_stride = 0;
  i64 targets_count = 0;  // Elements of `targets`.
  i64 time = 0, batch = 0, classes = 0, states = 0;
  i64 blank = 0, zero_infinity = 0, dtype = 0;
};

}  // namespace torch_remote::worker::cuda
