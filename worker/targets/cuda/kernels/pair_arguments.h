#pragma once

// What the kernels of pair.cu are called with, as arguments.h has it.
namespace torch_remote::worker::cuda {

using i64 = long;
using u64 = unsigned long;

// out = beta * added + alpha * left right: [batch, rows, inner] and [batch, inner, columns]. `out` is
// packed; strides are of batch, rows and columns.
struct PairProductArguments {
  u64 left = 0, right = 0, added = 0, out = 0;  // added: 0 is none
  i64 batch = 1, rows = 1, columns = 1, inner = 1;
  i64 left_strides[3] = {}, right_strides[3] = {}, added_strides[3] = {};
  i64 sums_batch = 0;  // into one matrix
  i64 dtype = 0, added_dtype = 0, out_dtype = 0;
  i64 alpha = 1, beta = 1;  // of integers
  double real_alpha = 1, real_beta = 1;
};

// out[i] = the sum of a b c over the dims that are not kept, which are behind those that are. `out` is packed.
constexpr i64 kTripleRank = 8;
struct TripleArguments {
  u64 a = 0, b = 0, c = 0, out = 0;
  i64 count = 0, terms = 1;  // of the result; of each sum
  i64 kept = 0, rank = 0;
  i64 sizes[kTripleRank] = {};
  i64 a_strides[kTripleRank] = {}, b_strides[kTripleRank] = {}, c_strides[kTripleRank] = {};
  i64 dtype = 0, out_dtype = 0;
};

// Distances of each row of one matrix to each row of another one, of the same batch: packed, [batch, rows, others]; or
// (pair_row_distance) of each row of one to those behind it, one row's after the other's.
enum class Distance : i64 { kZero, kOne, kTwo, kInfinite, kPower };
struct DistanceArguments {
  u64 left = 0, right = 0, out = 0;  // backward: out is the gradient of left
  u64 grad = 0, distance = 0;        // backward
  i64 batch = 1, rows = 0, others = 0, length = 0;
  i64 dtype = 0;
  Distance how = Distance::kTwo;
  double p = 2;
};

}  // namespace torch_remote::worker::cuda
