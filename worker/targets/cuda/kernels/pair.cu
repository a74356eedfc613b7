// Each row of one matrix with each row or column of another one: matmuls and distances; also sums of products of three
// tensors. One thread per element of the result.

#include "worker/targets/cuda/kernels/device.h"
#include "worker/targets/cuda/kernels/pair_arguments.h"

namespace torch_remote::worker::cuda {
namespace {

__device__ double sign(double x) { return x > 0 ? 1 : x < 0 ? -1 : x; }
// The position of a pair of rows among all distances; in a triangle, the order of the two rows does not matter.
__device__ i64 pair_of(const DistanceArguments& f, i64 row, i64 other) {
  if (f.is_triangle == 0) return row * f.others + other;
  const i64 first = row < other ? row : other, second = row < other ? other : row;
  return first * (2 * f.rows - first - 1) / 2 + second - first - 1;
}

__device__ double distance(const DistanceArguments& f, i64 left, i64 right) {
  double sum = 0;
  for (i64 i = 0; i < f.length; ++i) {
    const double apart = magnitude(load_float(f.left, left + i, f.dtype) - load_float(f.right, right + i, f.dtype));
    switch (f.how) {
      case Distance::kZero:
        sum += apart != 0 ? 1 : 0;
        break;
      case Distance::kL1:
        sum += apart;
        break;
      case Distance::kL2:
        sum += apart * apart;
        break;
      case Distance::kInfinite:
        if (sum == sum && !(apart <= sum)) sum = apart;
        break;
      case Distance::kPower:
        sum += f64::pow(apart, f.p);
    }
  }
  return f.how == Distance::kL2 ? __builtin_sqrt(sum) : f.how == Distance::kPower ? f64::pow(sum, 1 / f.p) : sum;
}

// The derivative of a distance by an element; `apart` is that element's difference.
__device__ double slope(const DistanceArguments& f, double apart, double distance) {
  switch (f.how) {
    case Distance::kZero:
      return 0;
    case Distance::kL1:
      return sign(apart);
    case Distance::kL2:
      return distance == 0 ? 0 : apart / distance;
    case Distance::kInfinite:
      return rounded(magnitude(apart), f.dtype) == distance ? sign(apart) : 0;
    default:
      if (distance == 0 || (apart == 0 && f.p < 2)) return 0;
      return sign(apart) * f64::pow(magnitude(apart), f.p - 1) / f64::pow(distance, f.p - 1);
  }
}

struct Integer {
  using T = u64;
  __device__ static T load(u64 from, i64 at, i64 dtype) { return static_cast<u64>(load_int(from, at, dtype)); }
  __device__ static void store(u64 to, i64 at, i64 dtype, T x) { store_int(to, at, dtype, static_cast<i64>(x)); }
  __device__ static T alpha(const PairMatmulArguments& f) { return static_cast<u64>(f.alpha); }
  __device__ static T beta(const PairMatmulArguments& f) { return static_cast<u64>(f.beta); }
};
struct Real {
  using T = double;
  __device__ static T load(u64 from, i64 at, i64 dtype) { return load_float(from, at, dtype); }
  __device__ static void store(u64 to, i64 at, i64 dtype, T x) { store_float(to, at, dtype, x); }
  __device__ static T alpha(const PairMatmulArguments& f) { return f.real_alpha; }
  __device__ static T beta(const PairMatmulArguments& f) { return f.real_beta; }
};

template <typename Kind>
__device__ void multiply(const PairMatmulArguments& f) {
  const i64 matrix = f.rows * f.columns, count = f.sums_batch != 0 ? matrix : f.batch * matrix;
  for (i64 i = first_item(); i < count; i += all_threads()) {
    const i64 b = divide(i, matrix), row = divide(i - b * matrix, f.columns), column = i - b * matrix - row * f.columns;
    typename Kind::T sum = 0;
    const i64 end = f.sums_batch != 0 ? f.batch : b + 1;
    for (i64 n = f.sums_batch != 0 ? 0 : b; n < end; ++n) {
      const i64 left = n * f.left_strides[0] + row * f.left_strides[1];
      const i64 right = n * f.right_strides[0] + column * f.right_strides[2];
      for (i64 k = 0; k < f.inner; ++k) {
        sum += Kind::load(f.left, left + k * f.left_strides[2], f.dtype) *
               Kind::load(f.right, right + k * f.right_strides[1], f.dtype);
      }
    }
    sum *= Kind::alpha(f);
    if (f.added != 0) {
      const i64 at = b * f.added_strides[0] + row * f.added_strides[1] + column * f.added_strides[2];
      sum += Kind::beta(f) * Kind::load(f.added, at, f.added_dtype);
    }
    Kind::store(f.out, i, f.out_dtype, sum);
  }
}

struct Places {
  i64 a, b, c;
};
// The offsets of element `number` over the dims [begin, end).
__device__ Places places_in(const TripleArguments& f, i64 number, i64 begin, i64 end, Places positions) {
  for (i64 d = end - 1; d >= begin; --d) {
    const i64 rest = divide(number, f.sizes[d]), at = number - rest * f.sizes[d];
    number = rest;
    positions.a += at * f.a_strides[d];
    positions.b += at * f.b_strides[d];
    positions.c += at * f.c_strides[d];
  }
  return positions;
}
template <typename Kind>
__device__ void sum_of_triples(const TripleArguments& f) {
  for (i64 i = first_item(); i < f.count; i += all_threads()) {
    const Places begin = places_in(f, i, 0, f.result_rank, {0, 0, 0});
    typename Kind::T sum = 0;
    for (i64 term = 0; term < f.terms; ++term) {
      const Places at = places_in(f, term, f.result_rank, f.rank, begin);
      sum += Kind::load(f.a, at.a, f.dtype) * Kind::load(f.b, at.b, f.dtype) * Kind::load(f.c, at.c, f.dtype);
    }
    Kind::store(f.out, i, f.out_dtype, sum);
  }
}

}  // namespace

KERNEL(256) pair_triple_int(const TripleArguments f) { sum_of_triples<Integer>(f); }
KERNEL(256) pair_triple_float(const TripleArguments f) { sum_of_triples<Real>(f); }

KERNEL(256) pair_matmul_int(const PairMatmulArguments f) { multiply<Integer>(f); }
KERNEL(256) pair_matmul_float(const PairMatmulArguments f) { multiply<Real>(f); }

KERNEL(256) pair_distance(const DistanceArguments f) {
  const i64 count = f.batch * f.rows * f.others;
  for (i64 i = first_item(); i < count; i += all_threads()) {
    const i64 row = divide(i, f.others), other = i - row * f.others, b = divide(row, f.rows);
    if (f.is_triangle != 0 && other <= row) continue;
    const double apart = distance(f, row * f.length, (b * f.others + other) * f.length);
    store_float(f.out, pair_of(f, row, other), f.dtype, apart);
  }
}

KERNEL(256) pair_distance_backward(const DistanceArguments f) {
  const i64 count = f.batch * f.rows * f.length;
  for (i64 i = first_item(); i < count; i += all_threads()) {
    const i64 row = divide(i, f.length), at = i - row * f.length, b = divide(row, f.rows);
    const double x = load_float(f.left, i, f.dtype);
    double sum = 0;
    for (i64 other = 0; other < f.others; ++other) {
      if (f.is_triangle != 0 && other == row) continue;
      const double apart = x - load_float(f.right, (b * f.others + other) * f.length + at, f.dtype);
      const i64 pair = pair_of(f, row, other);
      sum += load_float(f.grad, pair, f.dtype) * slope(f, apart, load_float(f.distance, pair, f.dtype));
    }
    store_float(f.out, i, f.dtype, sum);
  }
}

}  // namespace torch_remote::worker::cuda
