#pragma once

// The arguments of the kernels in bag.cu; see arguments.h.
namespace torch_remote::worker::cuda {

using i64 = long;
using u64 = unsigned long;

enum class BagMode : i64 { kSum, kMean, kMax };
// Bounds of failures that concern an offset, not an index.
// kFirstOffset: the first offset is not 0. kLastOffset - n: the last offset is beyond the n indices.
inline constexpr i64 kFirstOffset = -1, kLastOffset = -2;

// Bags of rows of a table: bag b has the indices from offsets[b] to before offsets[b + 1], or to the end. All are
// contiguous except the table.
struct BagArguments {
  u64 weight = 0, indices = 0, offsets = 0;  // indices, offsets: i64.
  u64 scales = 0;                            // One per index; may be 0.
  // bags: the bag of each index; sizes: indices per bag; max_indices: the rows that have the maxima. Their dtype is
  // index_dtype. Any may be 0.
  u64 out = 0, bags = 0, sizes = 0, max_indices = 0;
  u64 failure = 0;
  i64 weight_strides[2] = {};
  i64 rows = 0, length = 0, count = 0, bag_count = 0;  // Rows and row length of the table; number of indices.
  i64 offset_count = 0;                                // One more than bags if offsets include the end.
  i64 padding = -1;                                    // A row that is skipped.
  i64 dtype = 0, index_dtype = 0;
  BagMode mode = BagMode::kSum;
};

// The share of each index's row in its bag's gradient: values[i] = grad[bag of i] * scale.
struct BagSpreadArguments {
  u64 grad = 0, bags = 0, sizes = 0, scales = 0, values = 0;  // bags, sizes: i64; sizes and scales may be 0.
  u64 indices = 0, keys = 0;  // keys: all indices as sorted keys, to scale by frequency; may be 0.
  i64 grad_strides[2] = {};
  i64 count = 0, length = 0, dtype = 0, bag_count = 0;
};

// out[i] = the dot product of the row of index i and its bag's gradient.
struct BagScaleArguments {
  u64 grad = 0, weight = 0, indices = 0, offsets = 0, out = 0, failure = 0;
  i64 grad_strides[2] = {}, weight_strides[2] = {};
  i64 rows = 0, length = 0, count = 0, bag_count = 0, offset_count = 0, padding = -1, dtype = 0;
};

// Scales rows of a table that an index names to a norm of at most `max_indices`.
enum class RowNorm : i64 { kZero, kL1, kL2, kMax, kMin, kPower };
struct RenormArguments {
  u64 weight = 0, indices = 0, failure = 0;  // indices: contiguous i64.
  u64 marks = 0;                             // One byte per row: whether an index names it; initially zeros.
  i64 weight_strides[2] = {};
  i64 rows = 0, length = 0, count = 0, dtype = 0;
  RowNorm norm = RowNorm::kL2;
  double p = 2, most = 0;
};

}  // namespace torch_remote::worker::cuda
