#pragma once

// The arguments of the kernels in search.cu; see arguments.h.
namespace torch_remote::worker::cuda {

using i64 = long;
using u64 = unsigned long;

// out[i] = the number of elements less than in[i] (or equal) in the row of `bounds` that belongs to i.
struct SearchArguments {
  // Contiguous; sorter: i64, the row's order, may be 0; in: 0 means a number.
  u64 bounds = 0, sorter = 0, in = 0, out = 0;
  // Elements of `in`; elements of `in` per row, or 0 for a single row of bounds; elements of `bounds` per row.
  i64 count = 0, row = 0, length = 0;
  i64 dtype = 0, out_dtype = 0;
  i64 right = 0;  // Equal elements count.
  double number = 0;
  i64 int_number = 0;
};

// out[i] = whether a key is among the sorted keys (or is not); kNanKey never is.
struct MemberArguments {
  u64 keys = 0, sorted = 0, out = 0;
  i64 count = 0, length = 0;  // Keys; sorted keys.
  i64 inverts = 0, floats = 0;
};

// Counts elements in equal bins between two bounds: first as integers, then converted to the dtype.
struct HistogramArguments {
  u64 in = 0, counts = 0, out = 0, failure = 0;  // Contiguous; counts: u64, initially zeros.
  u64 least = 0, most = 0;  // If the bounds are equal: addresses of the minimum and maximum; else 0.
  i64 count = 0, bins = 0, dtype = 0;
  double from = 0, to = 0;
  i64 int_from = 0, int_to = 0;  // For integers.
};

// Statistics of integers that sort.cu has sorted as keys.
struct CountBoundArguments {
  u64 keys = 0, out = 0;  // out: i64: the greatest integer plus 1; -1 if an integer is negative.
  i64 count = 0;
};
struct CountArguments {
  u64 keys = 0, positions = 0, weights = 0, out = 0;  // Sorted; weights may be 0.
  i64 count = 0, bins = 0, dtype = 0;                 // dtype of weights and result.
};

// out[i] = the next element of `source`, where in[i] is not 0.
struct SelectScatterArguments {
  u64 in = 0, counts = 0, source = 0, out = 0;  // Contiguous; counts: sums, from select_count.
  u64 failure = 0;
  i64 count = 0, dtype = 0, item = 0;
  i64 chunks = 0, bound = 0;  // bound: elements of `source`.
};

// Repeats each position as often as its number says. `total`, if not 0, receives the number of all repetitions, or -1
// if a number is negative. If `found` is not negative, the number of all repetitions must equal it.
struct RepeatCountArguments {
  u64 repeats = 0, sums = 0, total = 0, failure = 0;  // Contiguous i64; sums: inclusive cumulative sums.
  i64 count = 0, found = -1;
};
struct RepeatArguments {
  u64 sums = 0, out = 0;
  i64 count = 0, found = 0, out_dtype = 0;
};

// For each sorted row: the median, or the most frequent element (the last of equal ones).
enum class RowStatistic : i64 { kMedian, kNanmedian, kMode };
struct RowStatisticArguments {
  u64 in = 0, keys = 0, positions = 0;  // From sort_tensor, in rows.
  u64 values = 0, indices = 0;          // May be 0.
  i64 rows = 0, length = 0, inner = 1, item = 0;
  RowStatistic statistic = RowStatistic::kMedian;
  i64 floats = 0;  // kNanKey counts as NaN.
};

// Weighted draws. With replacement: from rows of cumulative sums (f64). Without: the weights become keys, and the
// largest keys of a row are drawn.
struct MultinomialArguments {
  u64 in = 0;                                          // Contiguous weights.
  u64 sums = 0;                                        // Contiguous f64; 0: without replacement.
  u64 out = 0;                                         // i64, or f64 keys.
  u64 numbers = 0, seed = 0, offset = 0, failure = 0;  // numbers as in RandomArguments.
  i64 rows = 0, length = 0, samples = 0, dtype = 0;
  i64 is_strict = 0;  // Reports which kind of weight is invalid.
};
// Why a row of weights is invalid; stored as the failure's index.
enum class BadWeights : i64 { kInvalid, kNegative, kInfinite, kAllZero };

}  // namespace torch_remote::worker::cuda
