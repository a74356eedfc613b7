#pragma once

// The arguments of the kernels in margin.cu; see arguments.h.
namespace torch_remote::worker::cuda {

using i64 = long;
using u64 = unsigned long;

// Rows of scores, each with its class index (multi_margin_loss) or a list of label indices (multilabel_margin_loss).
// The list ends at a negative index. All are contiguous; indices are i64.
struct MarginArguments {
  u64 in = 0, target = 0, out = 0, failure = 0;
  u64 weight = 0;        // One per class; may be 0.
  u64 is_target = 0;     // For labels, in the scores' dtype: 1 for each label. It is an input of the backward pass.
  u64 grad = 0;          // Backward; one per row, or one for all.
  i64 grad_is_each = 0;  // Whether grad has one element per row.
  i64 rows = 0, length = 0;
  i64 dtype = 0, out_dtype = 0;
  i64 squares = 0;  // Squares what violates the margin.
  double margin = 1;
  double scale = 1;  // Factor for each row's sum.
};

}  // namespace torch_remote::worker::cuda
