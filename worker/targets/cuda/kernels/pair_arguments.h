#pragma once

// The arguments of the kernels in pair.cu; see arguments.h.
namespace torch_remote::worker::cuda {

using i64 = long;
using u64 = unsigned long;

// out = beta * added + alpha * (left @ right). left: [batch, rows, inner]; right: [batch, inner, columns]; added and
// out: [batch, rows, columns]. `out` is contiguous. Strides are those of the three dims of each tensor.
struct PairMatmulArguments {
  u64 left = 0, right = 0, added = 0, out = 0;  // added: 0 if there is none.
  i64 batch = 1, rows = 1, columns = 1, inner = 1;
  i64 left_strides[3] = {}, right_strides[3] = {}, added_strides[3] = {};
  i64 sums_batch = 0;  // 1: the result is one matrix, the sum over the batch.
  i64 dtype = 0, added_dtype = 0, out_dtype = 0;
  i64 alpha = 1, beta = 1;  // For integers.
  double real_alpha = 1, real_beta = 1;
};

// out[i] = the sum of a b c over the dims after the first `result_rank` ones. `out` is contiguous.
constexpr i64 kTripleRank = 8;
struct TripleArguments {
  u64 a = 0, b = 0, c = 0, out = 0;
  i64 count = 0, terms = 1;  // Elements of the result; terms of each sum.
  i64 result_rank = 0, rank = 0;
  i64 sizes[kTripleRank] = {};
  i64 a_strides[kTripleRank] = {}, b_strides[kTripleRank] = {}, c_strides[kTripleRank] = {};
  i64 dtype = 0, out_dtype = 0;
};

// Distances between the rows of two matrices, for each matrix of a batch. left: [batch, rows, length]; right:
// [batch, others, length]; out: [batch, rows, others]. All are contiguous. In a triangle, `left` and `right` are one
// matrix, and `out` has the distances between each row and the rows after it, row by row.
enum class Distance : i64 { kZero, kL1, kL2, kInfinite, kPower };
struct DistanceArguments {
  u64 left = 0, right = 0, out = 0;  // Backward: out is the gradient of left.
  u64 grad = 0, distance = 0;        // Backward.
  i64 batch = 1, rows = 0, others = 0, length = 0;
  i64 dtype = 0, is_triangle = 0;
  Distance how = Distance::kL2;
  double p = 2;
};

}  // namespace torch_remote::worker::cuda
