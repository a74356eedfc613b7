#pragma once

// What the kernels of reduce.cu are called with, as arguments.h has it.
namespace torch_remote::worker::cuda {

using i64 = long;
using u64 = unsigned long;

enum class Reduce : i64 {
  kSum,
  kSumOfNumbers,  // without NaN
  kMean,
  kProduct,
  kMax,
  kMin,
  kAny,
  kAll,
  kNonzero,
  kVariance,
  kDeviation,
  kNorm,
  kLogSumExp
};
// A long row is cut into pieces: these become f64 or i64 each, and then a row of such numbers the result.
enum class Stage : i64 { kAll, kPieces, kJoin };
// Packed rows; results are packed, too. `group` threads do a row: a power of two, at most those of a block.
struct ReduceArguments {
  u64 in = 0, in_places = 0, out = 0, places = 0;  // places: i64, of extremes; all but `in` may be 0
  u64 mean = 0;                                    // of variances; may be 0
  i64 rows = 0, length = 0, dtype = 0, out_dtype = 0, group = 1;
  i64 pieces = 1, piece = 0;  // of a row; elements of a piece
  i64 count = 0;              // elements of a row, before it was cut
  Stage stage = Stage::kAll;
  Reduce reduce = Reduce::kSum;
  double p = 0;  // of a norm; of variances what is taken from the number of elements
};

struct SoftmaxArguments {
  u64 in = 0, grad = 0, out = 0;  // backward: `in` is what was made
  i64 rows = 0, length = 0, dtype = 0, out_dtype = 0, group = 1;
  i64 is_log = 0, is_safe = 0;  // safe: 0 where all are -inf
};

struct LayerNormArguments {
  u64 in = 0, weight = 0, bias = 0, out = 0, mean = 0, scale = 0;  // all but `in` and `out` may be 0
  i64 rows = 0, length = 0, dtype = 0, weight_dtype = 0, mean_dtype = 0, group = 1;
  double epsilon = 0;
};

}  // namespace torch_remote::worker::cuda
