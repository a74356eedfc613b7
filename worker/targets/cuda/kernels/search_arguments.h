#pragma once

// What the kernels of search.cu are called with, as arguments.h has it.
namespace torch_remote::worker::cuda {

using i64 = long;
using u64 = unsigned long;

// out[i] = how many elements of the row of `bounds` that belongs to i are less than in[i] (or equal).
struct SearchArguments {
  u64 bounds = 0, sorter = 0, in = 0, out = 0;  // packed; sorter: i64, the row's order, may be 0; in: 0 is a number
  i64 count = 0, row = 0, length = 0;           // elements of `in`, and of it and of `bounds` in a row; row 0: just one
  i64 dtype = 0, out_dtype = 0;
  i64 right = 0;  // equal ones count
  double number = 0;
  i64 whole = 0;
};

// out[i] = whether a key is among sorted ones (or not); kKeyOfNan is not.
struct MemberArguments {
  u64 keys = 0, sorted = 0, out = 0;
  i64 count = 0, length = 0;  // keys; sorted ones
  i64 inverts = 0, floats = 0;
};

// How many elements lie in each of equal bins between two bounds: counts, then numbers of them.
struct HistogramArguments {
  u64 in = 0, counts = 0, out = 0, failure = 0;  // packed; counts: u64, zeros at first
  u64 least = 0, most = 0;                       // of all elements, if the bounds are equal
  i64 count = 0, bins = 0, dtype = 0;
  double from = 0, to = 0;
  i64 whole_from = 0, whole_to = 0;  // of integers
};

// What sorted keys (of sort.cu) of integers hold.
struct CountBoundArguments {
  u64 keys = 0, out = 0;  // out: i64: the largest integer and 1; -1 if one is negative
  i64 count = 0;
};
struct CountArguments {
  u64 keys = 0, places = 0, weights = 0, out = 0;  // sorted; weights may be 0
  i64 count = 0, bins = 0, dtype = 0;              // dtype of weights and result
};

// out[i] = the next element of `source`, where in[i] is set.
struct SelectScatterArguments {
  u64 in = 0, counts = 0, source = 0, out = 0;  // packed; counts: sums, of select_count
  u64 failure = 0;
  i64 count = 0, dtype = 0, item = 0;
  i64 chunks = 0, bound = 0;  // elements of `source`
};

// Each place as often as told. `total`: how many that are, -1 if a number is negative; with `found` places that is
// checked, and otherwise what `total` is for.
struct RepeatCountArguments {
  u64 repeats = 0, sums = 0, total = 0, failure = 0;  // packed i64; sums: of what is before and itself
  i64 count = 0, found = -1;
};
struct RepeatArguments {
  u64 sums = 0, out = 0;
  i64 count = 0, found = 0, out_dtype = 0;
};

// Of sorted rows: the middle one, or the one that is there most often (and the last of those that equal it).
enum class Middle : i64 { kMedian, kMedianOfNumbers, kMode };
struct MiddleArguments {
  u64 in = 0, keys = 0, places = 0;  // of sort_tensor, of rows
  u64 values = 0, indices = 0;       // may be 0
  i64 rows = 0, length = 0, inner = 1, item = 0;
  Middle middle = Middle::kMedian;
  i64 floats = 0;  // kKeyOfNan is no number
};

// Draws by weight. Rows of sums (f64, each of what is before and the element) or, without replacement, the weights,
// which become keys: the largest of a row are those that are drawn.
struct MultinomialArguments {
  u64 in = 0;                                          // packed weights
  u64 sums = 0;                                        // packed f64; 0: without replacement
  u64 out = 0;                                         // i64, or f64 keys
  u64 numbers = 0, seed = 0, offset = 0, failure = 0;  // numbers as in RandomArguments
  i64 rows = 0, length = 0, samples = 0, dtype = 0;
  i64 is_strict = 0;  // says which weight is invalid
};
// What a row of weights may not be: the failure's index.
enum class BadWeights : i64 { kInvalid, kNegative, kInfinite, kAllZero };

}  // namespace torch_remote::worker::cuda
