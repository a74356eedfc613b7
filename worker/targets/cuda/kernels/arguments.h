#pragma once

// The arguments of hand-written kernels: one struct per kernel, of 8-byte words. Both clang (as CUDA) and the worker's
// compiler read this file. Sizes and strides are in elements. Addresses are of device memory. Dtypes are the numbers of
// ir::DType.
namespace torch_remote::worker::cuda {

using i64 = long;
using u64 = unsigned long;

inline constexpr int kMaxDims = 10;
inline constexpr int kMaxIndices = 4;

// If this bit of a failure's address is set, the address is that of a word that holds the real address
// (codegen/gpu/launch.h).
inline constexpr u64 kIndirectRecord = 1;

// -- random.cu

enum class Draw : i64 { kUniform, kNormal, kExponential, kIntegers, kBernoulli, kBernoulliEach, kGeometric };

// Element i depends only on seed, offset and i (ir/philox.h), as in worker/targets/aten/kernels/random.cpp.
struct RandomArguments {
  u64 out = 0;                            // Contiguous.
  u64 numbers = 0, seed = 0, offset = 0;  // numbers: the address of seed and offset in memory; 0: use the members.
  i64 count = 0;
  i64 dtype = 0;
  Draw draw = Draw::kUniform;
  // kUniform: from, to; kNormal: mean, standard deviation; kExponential: lambda; kGeometric: log(1 - p)
  double a = 0, b = 0;
  i64 first = 0;          // kIntegers
  u64 range = 0;          // kIntegers: 0 means 2^64; kBernoulli: in units of 2^-32.
  u64 probabilities = 0;  // kBernoulliEach: contiguous f64.
  u64 failure = 0;        // kBernoulliEach: IndexRecord
};

// -- scan.cu

// Scans along the middle of three dims.
struct ScanArguments {
  u64 in = 0, out = 0, positions = 0;  // Contiguous; positions: i64, for cummax and cummin.
  i64 outer = 1, length = 0, inner = 1;
  i64 in_dtype = 0, out_dtype = 0;
  i64 minimum = 0;  // Set for cummin.
};

// -- sort.cu

// Rows of pairs (key, position), sorted by key; equal keys are sorted by position.
struct SortKeysArguments {
  u64 in = 0;  // Contiguous, three dims, sorted along the middle one.
  u64 keys = 0;
  i64 outer = 1, length = 0, inner = 1;
  i64 dtype = 0, descending = 0;
};
struct SortChunksArguments {
  u64 keys = 0, positions = 0;  // u64, u32; positions are written.
  i64 rows = 0, length = 0;
  i64 chunk = 0;  // A power of two, at most kSortChunk.
};
struct SortMergeArguments {
  u64 keys = 0, positions = 0, out_keys = 0, out_positions = 0;
  i64 rows = 0, length = 0;
  i64 width = 0;  // The length of the runs that are sorted already.
};
// values[o, k, i] = in[o, positions[o, i, first + k], i]
struct SortTakeArguments {
  u64 in = 0, positions = 0;
  u64 values = 0, indices = 0;  // Contiguous; may be 0.
  i64 outer = 1, length = 0, inner = 1;
  i64 first = 0, count = 0;
  i64 item = 0;  // Bytes.
};
inline constexpr int kSortChunk = 2048;
inline constexpr u64 kNanKey = ~u64{0} - 1;  // The greatest key, ~0, is padding.

// -- index.cu

// Each point is an index of `rank` dims. It has an element of `values`, given by the point's dims, and an element of
// `self`, given by its dims and indices.
struct IndexArguments {
  u64 self = 0, values = 0, failure = 0;
  i64 count = 0, rank = 0, indices = 0;
  i64 sizes[kMaxDims] = {};
  i64 self_strides[kMaxDims] = {}, value_strides[kMaxDims] = {};
  u64 index[kMaxIndices] = {};  // Addresses of i64 each.
  i64 index_strides[kMaxIndices][kMaxDims] = {};
  i64 steps[kMaxIndices] = {}, bounds[kMaxIndices] = {};  // Stride and size of `self` along the indexed dim.
  i64 item = 0;                                           // Bytes.
  i64 allows_negative = 0;                                // Negative indices count from the end.
  i64 skipped = -0x7FFFFFFFFFFFFFFF;                      // Points with this index are skipped.
};

// Writes (or adds) elements of `values` where a mask is true. The first index is the mask, the second one its inclusive
// cumulative sum. Without the second one, all points get the same value. Otherwise the n-th true point gets the element
// at offset (n - 1) * steps[1]; there are bounds[1] elements.
struct IndexMaskedArguments {
  IndexArguments index = {};
  i64 last = 0;  // The position of the total in the second index.
  i64 dtype = 0, adds = 0;
};

// Points that share an element of `self` are executed one after the other, in order. So the offsets of these elements
// are computed and sorted first, as keys. Keys cover the first `key_dims` dims; the other dims are iterated for each
// key.
struct IndexKeysArguments {
  IndexArguments index = {};
  u64 keys = 0;
  i64 key_dims = 0, key_count = 0;
};
enum class Combine : i64 { kSet, kSum, kProduct, kMax, kMin, kMean };
struct IndexApplyArguments {
  IndexArguments index = {};
  u64 keys = 0, positions = 0;  // Sorted.
  i64 key_dims = 0, key_count = 0;
  i64 dtype = 0;
  Combine combine = Combine::kSet;
  i64 with_self = 1;  // The previous element is included.
  double alpha = 1;   // Factor for sums.
  i64 int_alpha = 1;
};
inline constexpr u64 kNoKey = ~u64{0};

// Loss of rows: weighted by target, and summed.
struct NllLossArguments {
  u64 in = 0, target = 0, weight = 0, out = 0, total = 0, failure = 0;  // Contiguous, except `in`; weight may be 0.
  i64 rows = 0, classes = 0, row_stride = 0, class_stride = 0;
  i64 dtype = 0, reduction = 0, ignored = 0;
};

// -- select.cu

// Positions of elements that are not 0, in order. First the elements of each chunk of kSelectChunk are counted, then
// the offset of each chunk is computed, then positions are written.
struct SelectCountArguments {
  u64 in = 0, counts = 0;  // Contiguous; i64.
  i64 count = 0, dtype = 0;
};
// In place: exclusive cumulative sums; the total comes after `count` sums.
struct SelectSumArguments {
  u64 counts = 0;
  i64 count = 0;
};
struct SelectPositionsArguments {
  u64 in = 0, counts = 0;
  u64 positions = 0;         // [n, rank] of i64 with the strides below, or 0 to write values.
  u64 values = 0, from = 0;  // Elements of `from`, contiguous.
  i64 count = 0, dtype = 0, rank = 0, item = 0;
  i64 dim_stride = 0, position_stride = 1;  // Strides of positions.
  i64 most = 0x7FFFFFFFFFFFFFFF;            // Later ones are dropped.
  i64 sizes[kMaxDims] = {};
};
inline constexpr int kSelectChunk = 1024;

// Among sorted keys, sets 1 for the first of each run of equal keys, and 0 for the others.
struct UniqueFlagsArguments {
  u64 keys = 0, flags = 0;  // u64, u8
  i64 count = 0;
  i64 floats = 0;  // kNanKey does not equal itself.
};
struct UniqueWriteArguments {
  u64 in = 0, sorted = 0, flags = 0, counts = 0;  // in: contiguous; sorted: u32 positions; counts: sums, as above.
  u64 values = 0, inverse = 0, begins = 0;        // begins: i64, the first position of each run.
  i64 count = 0, item = 0;
};
// out[i] = begins[i + 1] - begins[i]; the last run ends at `end`.
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
  i64 int_first = 0, int_step = 0;
};
// linspace and logspace, as torch computes them in the dtype: the second half counts backwards from the end.
struct LinspaceArguments {
  u64 out = 0;
  u64 first_at = 0, last_at = 0;       // Addresses of the ends (f64); 0: use the numbers.
  i64 count = 0, dtype = 0, step = 1;  // step: stride of `out`.
  double first = 0, last = 0;
  i64 raises = 0;  // The values are exponents of `base`.
  double base = 0;
};
// Sets the elements above (below) a diagonal of matrices to 0.
struct TriangleArguments {
  u64 in = 0, out = 0;  // Contiguous.
  i64 count = 0, rows = 0, columns = 0, diagonal = 0, upper = 0, item = 0;
};
// out[o, t, i] = the sum of in[o, w, i, k] where w * step + k is t: windows of `size` elements, all contiguous.
struct UnfoldBackwardArguments {
  u64 in = 0, out = 0;
  i64 count = 0, length = 0, inner = 0;  // Sizes of out.
  i64 windows = 0, size = 0, step = 1, dtype = 0;
};
// Fails if a number (i64) is 0.
struct AssertArguments {
  u64 number = 0, failure = 0;
};
// Fills with one element, given by its bits.
struct FillArguments {
  u64 out = 0;
  i64 count = 0, item = 0;
  u64 bits = 0;
};

// -- attention.cu

inline constexpr int kMaxAttention = 256, kMaxAttentionF64 = 128;  // The most elements per row; for f64.

// As in remote::attention: element (b, h, i, j) is at b * strides[0] + h * strides[1] + ... Rows are contiguous, except
// those of the bias. If causal, query i attends to keys 0 to i.
struct AttentionArguments {
  u64 query = 0, key = 0, value = 0, bias = 0, out = 0, logsumexp = 0;
  u64 partial = 0;  // For each piece of the keys: maximum, sum and values, in f32 or f64.
  u64 delta = 0;    // Backward: one f32 or f64 per query.
  u64 grad = 0, grad_query = 0, grad_key = 0, grad_value = 0;
  i64 query_strides[4] = {}, key_strides[4] = {}, value_strides[4] = {}, bias_strides[4] = {}, out_strides[4] = {};
  i64 logsumexp_strides[4] = {}, grad_strides[4] = {};
  i64 grad_query_strides[4] = {}, grad_key_strides[4] = {}, grad_value_strides[4] = {};
  i64 batch = 0, heads = 0, shared = 1, queries = 0, keys = 0, size = 0, value_size = 0;
  i64 causal = 0, bias_is_mask = 0, logsumexp_dtype = 0;
  i64 pieces = 1, piece_keys = 0;  // Pieces of the keys, and keys per piece.
  double scale = 1;
};

// For cuDNN's attention. Copies a strided bias to contiguous rows of `row` elements, of which `keys` are used. Masked
// keys get a value far below all others. `has_keys` gets one byte per row: whether it attends to any key.
struct AttentionBiasArguments {
  u64 bias = 0, out = 0, has_keys = 0;
  i64 strides[4] = {};
  i64 batch = 0, heads = 0, queries = 0, keys = 0, row = 0;
  i64 is_mask = 0, causal = 0;
};
// Rows that attend to no key become zeros, and their log-sum-exp minus infinity. The byte of row (b, h, i) is at b *
// has_keys_batch + h * has_keys_head + i.
struct AttentionMaskedRowsArguments {
  u64 has_keys = 0, out = 0, logsumexp = 0;  // out and logsumexp are contiguous.
  i64 out_strides[4] = {};
  i64 batch = 0, heads = 0, queries = 0, size = 0;
  i64 has_keys_batch = 0, has_keys_head = 0;
};
// Copies log-sum-exp values to contiguous memory. For rows that attend to no key it writes plus infinity, so that their
// weights are 0.
struct AttentionSumsArguments {
  u64 logsumexp = 0, out = 0;
  i64 strides[3] = {};
  i64 batch = 0, heads = 0, queries = 0;
};

}  // namespace torch_remote::worker::cuda
