#pragma once

// What the kernels of bag.cu are called with, as arguments.h has it.
namespace torch_remote::worker::cuda {

using i64 = long;
using u64 = unsigned long;

enum class BagMode : i64 { kSum, kMean, kMax };
// Bounds of failures that are of an offset, and not of an index: the first one is not 0; the last one is behind as many
// indices as the bound is below kLastOffset.
inline constexpr i64 kFirstOffset = -1, kLastOffset = -2;

// Bags of rows of a table: bag b has the indices from offsets[b] to before offsets[b + 1], or to the end. All are
// packed but for the table.
struct BagArguments {
  u64 weight = 0, indices = 0, offsets = 0;    // indices, offsets: i64
  u64 scales = 0;                              // of each index; may be 0
  u64 out = 0, bags = 0, sizes = 0, most = 0;  // of the last three any may be 0, and elements are of index_dtype:
                                               // the bag of each index; indices in each bag; rows of maxima
  u64 failure = 0;
  i64 weight_strides[2] = {};
  i64 rows = 0, length = 0, count = 0, bag_count = 0;  // of the table; indices
  i64 offset_count = 0;                                // bags, and the end, if offsets have it
  i64 padding = -1;                                    // a row that does not count
  i64 dtype = 0, index_dtype = 0;
  BagMode mode = BagMode::kSum;
};

// What each index's row gets of its bag's gradient: values[i] = grad[bag of i] * scale.
struct BagSpreadArguments {
  u64 grad = 0, bags = 0, sizes = 0, scales = 0, values = 0;  // bags, sizes: i64; sizes and scales may be 0
  u64 indices = 0, keys = 0;  // keys: sorted, of all indices; may be 0: how often is no matter
  i64 grad_strides[2] = {};
  i64 count = 0, length = 0, dtype = 0, bag_count = 0;
};

// out[i] = the product of the row of index i with its bag's gradient.
struct BagScaleArguments {
  u64 grad = 0, weight = 0, indices = 0, offsets = 0, out = 0, failure = 0;
  i64 grad_strides[2] = {}, weight_strides[2] = {};
  i64 rows = 0, length = 0, count = 0, bag_count = 0, offset_count = 0, padding = -1, dtype = 0;
};

// Rows of a table that some index names get a norm of at most `most`.
enum class RowNorm : i64 { kZero, kOne, kTwo, kMost, kLeast, kPower };
struct RenormArguments {
  u64 weight = 0, indices = 0, failure = 0;  // indices: packed i64
  u64 marks = 0;                             // a byte for each row: whether it is named; zeros at first
  i64 weight_strides[2] = {};
  i64 rows = 0, length = 0, count = 0, dtype = 0;
  RowNorm norm = RowNorm::kTwo;
  double p = 2, most = 0;
};

}  // namespace torch_remote::worker::cuda
