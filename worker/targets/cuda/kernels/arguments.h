#pragma once

// What kernels written by hand are called with: one struct each, of words of 8 bytes. Read by clang as CUDA and by the
// worker's compiler. Sizes and strides are in elements; addresses are of device memory; dtypes are ir::DType's numbers.
namespace torch_remote::worker::cuda {

using i64 = long;
using u64 = unsigned long;

inline constexpr int kMostDims = 10;
inline constexpr int kMostIndices = 4;

// A failure's address with this bit is that of 8 bytes in memory which have the address (codegen/gpu/launch.h).
inline constexpr u64 kElsewhere = 1;

// -- random.cu

enum class Draw : i64 { kUniform, kNormal, kExponential, kIntegers, kBelow, kBelowEach, kGeometric };

// Element i depends on seed, offset and i alone (ir/philox.h), as worker/targets/aten/kernels/random.cpp has it.
struct RandomArguments {
  u64 out = 0;                            // packed
  u64 numbers = 0, seed = 0, offset = 0;  // numbers: where seed and offset are in memory; 0: here
  i64 count = 0;
  i64 dtype = 0;
  Draw draw = Draw::kUniform;
  double a = 0, b = 0;    // kUniform: from, to; kNormal: mean, deviation; kExponential: lambda; kGeometric: log(1 - p)
  i64 first = 0;          // kIntegers
  u64 range = 0;          // kIntegers: 0 is 2^64; kBelow: of 2^32
  u64 probabilities = 0;  // kBelowEach: packed f64
  u64 failure = 0;        // kBelowEach: IndexRecord
};

// -- scan.cu

// Along the middle one of three dims.
struct ScanArguments {
  u64 in = 0, out = 0, places = 0;  // packed; places: i64, of cummax and cummin
  i64 outer = 1, length = 0, inner = 1;
  i64 in_dtype = 0, out_dtype = 0;
  i64 minimum = 0;  // of cummin
};

// -- sort.cu

// Sorted are rows of (key, place): by keys, equal ones by places.
struct SortKeysArguments {
  u64 in = 0;  // packed, three dims, sorted along the middle one
  u64 keys = 0;
  i64 outer = 1, length = 0, inner = 1;
  i64 dtype = 0, descending = 0;
};
struct SortChunksArguments {
  u64 keys = 0, places = 0;  // u64, u32; places are written
  i64 rows = 0, length = 0;
  i64 chunk = 0;  // a power of two, at most kSortChunk
};
struct SortMergeArguments {
  u64 keys = 0, places = 0, out_keys = 0, out_places = 0;
  i64 rows = 0, length = 0;
  i64 width = 0;  // of what is sorted already
};
// values[o, k, i] = in[o, places[o, i, first + k], i]
struct SortTakeArguments {
  u64 in = 0, places = 0;
  u64 values = 0, indices = 0;  // packed; may be 0
  i64 outer = 1, length = 0, inner = 1;
  i64 first = 0, count = 0;
  i64 item = 0;  // bytes
};
inline constexpr int kSortChunk = 2048;
inline constexpr u64 kKeyOfNan = ~u64{0} - 1;  // the last one is nobody's

// -- index.cu

// A point of so many dims has an element of `values`, and one of `self`: where its dims say, and its indices.
struct IndexArguments {
  u64 self = 0, values = 0, failure = 0;
  i64 count = 0, rank = 0, indices = 0;
  i64 sizes[kMostDims] = {};
  i64 self_strides[kMostDims] = {}, value_strides[kMostDims] = {};
  u64 index[kMostIndices] = {};  // i64 each
  i64 index_strides[kMostIndices][kMostDims] = {};
  i64 steps[kMostIndices] = {}, bounds[kMostIndices] = {};  // of `self`, along what the index is of
  i64 item = 0;                                             // bytes
  i64 wraps = 0;                                            // negative indices count from the end
  i64 skipped = -0x7FFFFFFFFFFFFFFF;                        // an index whose points are left out
};

// The points of a mask, which is the first index, get (or add) elements of `values`: the second index says how many of
// the mask come before a point, itself too (none: all have the same); elements lie steps[1] apart, bounds[1] of them.
struct IndexMaskedArguments {
  IndexArguments index = {};
  i64 last = 0;  // where the second index has how many there are in all
  i64 dtype = 0, adds = 0;
};

// Points whose element of `self` others have, too, are done one after the other, in their order. So these elements are
// found and sorted first, for the points of the first `key_dims` dims; the others are in each of their places.
struct IndexKeysArguments {
  IndexArguments index = {};
  u64 keys = 0;
  i64 key_dims = 0, key_count = 0;
};
enum class Combine : i64 { kSet, kSum, kProduct, kMax, kMin, kMean };
struct IndexApplyArguments {
  IndexArguments index = {};
  u64 keys = 0, places = 0;  // sorted
  i64 key_dims = 0, key_count = 0;
  i64 dtype = 0;
  Combine combine = Combine::kSet;
  i64 with_self = 1;  // what is there counts
  double alpha = 1;   // of sums
  i64 whole_alpha = 1;
};
inline constexpr u64 kNoKey = ~u64{0};

// Rows of a loss: weights of targets, and their sum.
struct NllLossArguments {
  u64 in = 0, target = 0, weight = 0, out = 0, total = 0, failure = 0;  // packed but for `in`; weight may be 0
  i64 rows = 0, classes = 0, row_stride = 0, class_stride = 0;
  i64 dtype = 0, reduction = 0, ignored = 0;
};

struct NllLossBackwardArguments {
  u64 grad = 0, target = 0, weight = 0, total = 0, out = 0;  // out: packed, zeros
  i64 rows = 0, classes = 0;
  i64 dtype = 0, reduction = 0, ignored = 0;
};

// -- select.cu

// Places of elements that are not 0, in order: how many each chunk of kSelectChunk elements has, where each begins,
// then the places themselves.
struct SelectCountArguments {
  u64 in = 0, counts = 0;  // packed; i64
  i64 count = 0, dtype = 0;
};
// In place: sums before each place; the last one, after `count`, is that of all.
struct SelectSumArguments {
  u64 counts = 0;
  i64 count = 0;
};
struct SelectPlacesArguments {
  u64 in = 0, counts = 0;
  u64 places = 0;            // [n, rank] of i64, one dim after the other, or null:
  u64 values = 0, from = 0;  // elements of `from`, packed
  i64 count = 0, dtype = 0, rank = 0, item = 0;
  i64 dim_stride = 0, place_stride = 1;  // of places
  i64 most = 0x7FFFFFFFFFFFFFFF;         // later ones are left out
  i64 sizes[kMostDims] = {};
};
inline constexpr int kSelectChunk = 1024;

// Equal neighbours among sorted keys: 1 where one begins that others before it have not.
struct UniqueFlagsArguments {
  u64 keys = 0, flags = 0;  // u64, u8
  i64 count = 0;
  i64 floats = 0;  // kKeyOfNan equals none, not itself either
};
struct UniqueWriteArguments {
  u64 in = 0, sorted = 0, flags = 0, counts = 0;  // in: packed; sorted: u32 places; counts: sums, as above
  u64 values = 0, inverse = 0, begins = 0;        // begins: i64, where each run begins
  i64 count = 0, item = 0;
};
// out[i] = begins[i + 1] - begins[i]; the last one ends at `end`.
struct UniqueCountArguments {
  u64 begins = 0, out = 0;
  i64 count = 0, end = 0;
};

// -- fill.cu

// out[i] = first + i * step, as torch computes it in the dtype.
struct RangeArguments {
  u64 out = 0;
  i64 count = 0, dtype = 0;
  double first = 0, step = 0;
  i64 whole_first = 0, whole_step = 0;
};
// So many numbers from one to another one, as torch computes them in the dtype: the second half backwards from the end.
struct BetweenArguments {
  u64 out = 0;
  u64 first_at = 0, last_at = 0;       // where the ends are, f64; 0: they are numbers
  i64 count = 0, dtype = 0, step = 1;  // elements of `out` lie so far apart
  double first = 0, last = 0;
  i64 raises = 0;  // they are exponents of a base
  double base = 0;
};
// Of matrices: what is above (below) a diagonal becomes 0.
struct TriangleArguments {
  u64 in = 0, out = 0;  // packed
  i64 count = 0, rows = 0, columns = 0, diagonal = 0, upper = 0, item = 0;
};
// out[o, t, i] = the sum of in[o, w, i, k] where w * step + k is t: windows of `size` elements, all packed.
struct UnfoldedArguments {
  u64 in = 0, out = 0;
  i64 count = 0, length = 0, inner = 0;  // of out
  i64 windows = 0, size = 0, step = 1, dtype = 0;
};
// Whether a number (i64) is not 0.
struct AssertArguments {
  u64 number = 0, failure = 0;
};
// values[p] = value, of an item's bits
struct FillArguments {
  u64 out = 0;
  i64 count = 0, item = 0;
  u64 bits = 0;
};

// -- attention.cu

inline constexpr int kMostAttention = 256, kMostAttentionWide = 128;  // elements of a row; of f64

// As remote::attention has it: element (b, h, i, j) lies b * strides[0] + h * strides[1] + ... on; of all but the bias
// elements of a row lie side by side. Query i sees keys 0
// to i if it is causal.
struct AttentionArguments {
  u64 query = 0, key = 0, value = 0, bias = 0, out = 0, logsumexp = 0;
  u64 partial = 0;  // of each piece: maximum, sum and values, f32 or f64
  u64 delta = 0;    // backward: of each query, likewise
  u64 grad = 0, grad_query = 0, grad_key = 0, grad_value = 0;
  i64 query_strides[4] = {}, key_strides[4] = {}, value_strides[4] = {}, bias_strides[4] = {}, out_strides[4] = {};
  i64 logsumexp_strides[4] = {}, grad_strides[4] = {};
  i64 grad_query_strides[4] = {}, grad_key_strides[4] = {}, grad_value_strides[4] = {};
  i64 batch = 0, heads = 0, shared = 1, queries = 0, keys = 0, size = 0, value_size = 0;
  i64 causal = 0, bias_is_mask = 0, logsumexp_dtype = 0;
  i64 pieces = 1, piece_keys = 0;  // of the keys
  double scale = 1;
};

// For cuDNN's attention. What is added to scores, of elements that lie as `strides` say, becomes rows of `row` elements
// (`keys` of them counted) without gaps, where what is not seen is far below all others; `seen` gets a byte for each
// row: whether it sees any key.
struct AttentionBiasArguments {
  u64 bias = 0, out = 0, seen = 0;
  i64 strides[4] = {};
  i64 batch = 0, heads = 0, queries = 0, keys = 0, row = 0;
  i64 is_mask = 0, causal = 0;
};
// Rows that see no key are zeros, their sums minus infinity. Row (b, h, i) has the byte
// b * seen_batch + h * seen_head + i.
struct AttentionUnseenArguments {
  u64 seen = 0, out = 0, logsumexp = 0;  // these without gaps
  i64 out_strides[4] = {};
  i64 batch = 0, heads = 0, queries = 0, size = 0;
  i64 seen_batch = 0, seen_head = 0;
};
// Sums without gaps, where those of rows that see no key are plus infinity: then their weights are 0.
struct AttentionSumsArguments {
  u64 logsumexp = 0, out = 0;
  i64 strides[3] = {};
  i64 batch = 0, heads = 0, queries = 0;
};

}  // namespace torch_remote::worker::cuda
