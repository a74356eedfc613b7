#pragma once

// The arguments of the kernels in margin.cu; see arguments.h.
namespace torch_remote::worker::cuda {

using i64 = long;
using u64 = unsigned long;

// Rows of scores, each with its class index (multi_margin_loss) or a list of label indices (multilabel_margin_loss).
// The list ends at a negative index. All are contiguous; indices are i64.
struct MarginArguments {
  u64 in = 0, target = 0, out = 0;
  u64 failure = 0;       // IndexRecord, for an index out of bounds.
  u64 weight = 0;        // One per class; may be 0.
  u64 is_target = 0;     // Lists of labels only. In the scores' dtype and shape: 1 for each label, 0 for other classes.
                         // The forward pass writes it, the backward pass reads it.
  u64 grad = 0;          // Backward; one per row, or one for all.
  i64 grad_is_each = 0;  // Whether grad has one element per row.
  i64 rows = 0, length = 0;
  i64 dtype = 0, out_dtype = 0;
  i64 squares = 0;  // Whether each violation of the margin is squared (p = 2).
  double margin = 1;
  double scale = 1;  // Factor for each row's sum.
};

}  // namespace torch_remote::worker::cuda
