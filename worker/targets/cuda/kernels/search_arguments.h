#pragma once

// The arguments of the kernels in search.cu, and of some kernels in select.cu and random.cu; see arguments.h. "Keys"
// are the 64-bit keys by which sort.cu sorts elements. An address of 0 means that there is no such tensor.
namespace torch_remote::worker::cuda {

using i64 = long;
using u64 = unsigned long;

// torch.searchsorted: out[i] = the number of bounds that are less than in[i], among the bounds of the row of i.
struct SearchArguments {
  u64 bounds = 0;       // Contiguous.
  u64 sorter = 0;       // Contiguous i64: the order that sorts each row of `bounds`; 0: the rows are sorted already.
  u64 in = 0, out = 0;  // Contiguous. in = 0: search for `number` or `int_number`.
  u64 failure = 0;      // With `sorter`: IndexRecord
  i64 count = 0;        // Elements of `in`.
  i64 row = 0;          // Elements of `in` per row; 0: all are searched in one row of bounds.
  i64 length = 0;       // Elements of `bounds` per row.
  i64 dtype = 0, out_dtype = 0;
  i64 right = 0;  // 1: bounds that equal in[i] count, too.
  double number = 0;
  i64 int_number = 0;
};

// torch.isin: out[i] = whether keys[i] is in `sorted`.
struct MemberArguments {
  u64 keys = 0, sorted = 0, out = 0;
  i64 count = 0;    // Number of keys.
  i64 length = 0;   // Number of sorted keys.
  i64 inverts = 0;  // 1: whether it is not.
  i64 floats = 0;   // 1: kNanKey is a NaN, which equals no key.
};

// torch.histc: counts the elements in bins of equal width between two bounds.
struct HistogramArguments {
  u64 in = 0;      // Contiguous.
  u64 counts = 0;  // u64, initially zeros: the number of elements in each bin.
  u64 out = 0;     // The counts, converted to `dtype`.
  u64 failure = 0;
  // If the caller gave equal bounds, the bounds are the minimum and maximum, at these addresses; else 0.
  u64 least = 0, most = 0;
  i64 count = 0, bins = 0, dtype = 0;
  double from = 0, to = 0;       // The bounds of floats.
  i64 int_from = 0, int_to = 0;  // The bounds of integers.
};

// torch.bincount of integers whose keys are sorted. First the number of bins:
struct CountBoundArguments {
  u64 keys = 0;
  u64 out = 0;  // i64: the greatest integer plus 1; -1 if an integer is negative.
  i64 count = 0;
};
// Then the number of integers in each bin, or the sum of their weights.
struct CountArguments {
  u64 keys = 0, positions = 0;  // Sorted keys, and where their elements were before.
  u64 weights = 0, out = 0;
  i64 count = 0, bins = 0;
  i64 dtype = 0;  // The dtype of the weights and the sums.
};

// select.cu, masked_scatter_: out[i] = the next element of `source`, where in[i] is not 0. All are contiguous.
struct SelectScatterArguments {
  u64 in = 0;
  u64 counts = 0;  // From select_sum: the number of set elements before each chunk of `in`, then of all.
  u64 source = 0, out = 0;
  u64 failure = 0;
  i64 count = 0, dtype = 0;  // Elements of `in`, and their dtype.
  i64 item = 0;              // Bytes of an element of `source`.
  i64 chunks = 0;
  i64 bound = 0;  // Elements of `source`.
};

// select.cu, torch.repeat_interleave: position i occurs repeats[i] times in the result. First the length of the result:
struct RepeatCountArguments {
  u64 repeats = 0;  // Contiguous i64.
  u64 sums = 0;     // Their inclusive cumulative sums.
  u64 total = 0;    // Receives the length of the result, or -1 if a number is negative.
  u64 failure = 0;
  i64 count = 0;   // Elements of `repeats`.
  i64 found = -1;  // If not negative: the length must equal this.
};
// Then the result.
struct RepeatArguments {
  u64 sums = 0, out = 0;
  i64 count = 0;  // Elements of `sums`.
  i64 found = 0;  // Elements of `out`.
  i64 out_dtype = 0;
};

// For each sorted row: the median, or the most frequent element (the last of equal ones).
enum class RowStatistic : i64 { kMedian, kNanmedian, kMode };
struct RowStatisticArguments {
  u64 in = 0;                   // The elements, [outer, length, inner].
  u64 keys = 0, positions = 0;  // From sort_tensor: [rows, length] with rows = outer * inner.
  u64 values = 0, indices = 0;  // The results; may be 0.
  i64 rows = 0, length = 0, inner = 1;
  i64 item = 0;  // Bytes of an element.
  RowStatistic statistic = RowStatistic::kMedian;
  i64 floats = 0;  // 1: kNanKey is a NaN.
};

// random.cu, torch.multinomial. With replacement, a kernel draws from cumulative sums of a row's weights. Without
// replacement, a kernel divides the weights by exponential random numbers, and the largest quotients of a row are
// drawn.
struct MultinomialArguments {
  u64 in = 0;                             // Contiguous weights.
  u64 sums = 0;                           // With replacement: their cumulative sums, contiguous f64.
  u64 out = 0;                            // With replacement: the drawn positions, i64. Without: the quotients, f64.
  u64 numbers = 0, seed = 0, offset = 0;  // As in RandomArguments.
  u64 failure = 0;
  i64 rows = 0, length = 0, samples = 0, dtype = 0;
  i64 is_strict = 0;  // 1: the failure says which kind of weight is invalid.
};
// Why a row of weights is invalid; stored as the failure's index.
enum class BadWeights : i64 { kInvalid, kNegative, kInfinite, kAllZero };

}  // namespace torch_remote::worker::cuda
