#pragma once

// The arguments of the kernels in reduce.cu; see arguments.h.
namespace torch_remote::worker::cuda {

using i64 = long;
using u64 = unsigned long;

enum class Reduce : i64 {
  kSum,
  kNansum,  // Ignores NaN.
  kMean,
  kProduct,
  kMax,
  kMin,
  kAny,
  kAll,
  kNonzero,
  kVariance,
  kStd,
  kNorm,
  kLogSumExp
};
// A long row is split into pieces. Each piece is reduced to an f64 or i64, and then the row of these to the result.
enum class Stage : i64 { kAll, kPieces, kJoin };
// Rows and results are contiguous. `group` threads handle a row: a power of two, at most the block's threads.
struct ReduceArguments {
  u64 in = 0, in_positions = 0, out = 0, positions = 0;  // positions: i64, for extremes; all except `in` may be 0.
  u64 mean = 0;                                          // For variances; may be 0.
  i64 rows = 0, length = 0, dtype = 0, out_dtype = 0, group = 1;
  i64 pieces = 1, piece = 0;  // Pieces per row; elements per piece.
  i64 count = 0;              // Elements of a row, before it is split.
  Stage stage = Stage::kAll;
  Reduce reduce = Reduce::kSum;
  double p = 0;  // The order of a norm; for variances the correction.
};

struct SoftmaxArguments {
  u64 in = 0, grad = 0, out = 0;  // Backward: `in` is the forward result.
  i64 rows = 0, length = 0, dtype = 0, out_dtype = 0, group = 1;
  i64 is_log = 0, is_safe = 0;  // safe: 0 where all elements are -inf.
};

struct LayerNormArguments {
  u64 in = 0, weight = 0, bias = 0, out = 0, mean = 0, scale = 0;  // All except `in` and `out` may be 0.
  i64 rows = 0, length = 0, dtype = 0, weight_dtype = 0, mean_dtype = 0, group = 1;
  double epsilon = 0;
};

}  // namespace torch_remote::worker::cuda
