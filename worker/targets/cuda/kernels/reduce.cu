// Reduces contiguous rows to numbers, or to rows of the same size. `group` adjacent threads of a block handle a row;
// each has every `group`-th element. Partial results are combined in a fixed order, so results are reproducible.

#include "worker/targets/cuda/kernels/device.h"
#include "worker/targets/cuda/kernels/reduce_arguments.h"

namespace torch_remote::worker::cuda {
namespace {

constexpr int kThreads = 256;

__device__ double load_number(u64 from, i64 at, i64 dtype) {
  return is_float(dtype) ? load_float(from, at, dtype) : static_cast<double>(load_int(from, at, dtype));
}
__device__ void load(u64 from, i64 at, i64 dtype, double* x) { *x = load_number(from, at, dtype); }
__device__ void load(u64 from, i64 at, i64 dtype, i64* x) { *x = load_int(from, at, dtype); }
__device__ void store_number(u64 to, i64 at, i64 dtype, double x) {
  if (is_float(dtype)) {
    store_float(to, at, dtype, x);
  } else {
    store_int(to, at, dtype, static_cast<i64>(x));
  }
}
__device__ void store_number(u64 to, i64 at, i64 dtype, i64 x) {
  if (is_float(dtype)) {
    store_float(to, at, dtype, static_cast<double>(x));
  } else {
    store_int(to, at, dtype, x);
  }
}

__device__ bool is_nan(double x) { return x != x; }
__device__ bool is_nan(i64) { return false; }
__device__ double add(double a, double b) { return a + b; }
__device__ i64 add(i64 a, i64 b) { return static_cast<i64>(static_cast<u64>(a) + static_cast<u64>(b)); }
__device__ double multiply(double a, double b) { return a * b; }
__device__ i64 multiply(i64 a, i64 b) { return static_cast<i64>(static_cast<u64>(a) * static_cast<u64>(b)); }

// A partial result: a number and, if needed, its position; -1: no element.
template <typename T>
struct Part {
  T x;
  i64 position;
};

// NaN comes first; among equal elements the first one.
template <typename T>
__device__ bool comes_first(const Part<T>& a, const Part<T>& b, bool smallest) {
  if (b.position < 0) return true;
  if (a.position < 0) return false;
  if (is_nan(a.x) || is_nan(b.x)) return is_nan(a.x) && (!is_nan(b.x) || a.position < b.position);
  if (a.x == b.x) return a.position < b.position;
  return (a.x < b.x) == smallest;
}

enum Join { kAdd, kMultiply, kLargest, kSmallest };

template <typename T>
__device__ Part<T> join(const Part<T>& a, const Part<T>& b, Join how) {
  switch (how) {
    case kAdd:
      return {add(a.x, b.x), 0};
    case kMultiply:
      return {multiply(a.x, b.x), 0};
    default:
      return comes_first(a, b, how == kSmallest) ? a : b;
  }
}

// Combines the group's parts, and returns the result to all of its threads. All threads of the block must call this.
template <typename T>
__device__ Part<T> join_group(const Part<T>& mine, Join how, i64 group, T* numbers, i64* positions) {
  const i64 first = thread() & ~(group - 1);
  sync();
  numbers[thread()] = mine.x;
  positions[thread()] = mine.position;
  for (i64 half = group / 2; half > 0; half /= 2) {
    sync();
    const bool joins = thread() - first < half;
    Part<T> both = mine;
    if (joins) {
      both = join<T>({numbers[thread()], positions[thread()]}, {numbers[thread() + half], positions[thread() + half]},
                     how);
    }
    sync();
    if (joins) {
      numbers[thread()] = both.x;
      positions[thread()] = both.position;
    }
  }
  sync();
  return {numbers[first], positions[first]};
}

__device__ double magnitude(double x) { return x < 0 ? -x : x == 0 ? 0 : x; }

// |x|^p for a norm.
__device__ double power(double x, double p) {
  x = magnitude(x);
  if (p == 0) return x != 0 ? 1 : 0;
  if (p == 1) return x;
  if (p == 2) return x * x;
  return f64::pow(x, p);
}
__device__ double root(double sum, double p) {
  if (p == 0 || p == 1) return sum;
  if (p == 2) return __builtin_sqrt(sum);
  return f64::pow(sum, 1 / p);
}

// The term that an element adds to a sum.
__device__ double counted(const ReduceArguments& reduce, double x, double mean) {
  switch (reduce.reduce) {
    case Reduce::kNansum:
      return x != x ? 0 : x;
    case Reduce::kNonzero:
    case Reduce::kAny:
    case Reduce::kAll:
      return x != 0 ? 1 : 0;
    case Reduce::kNorm:
      return power(x, reduce.p);
    case Reduce::kVariance:
    case Reduce::kStd:
      return (x - mean) * (x - mean);
    case Reduce::kLogSumExp:
      return exp(x - mean);
    default:
      return x;
  }
}
__device__ i64 counted(const ReduceArguments& reduce, i64 x, i64) {
  const bool counts =
      reduce.reduce == Reduce::kNonzero || reduce.reduce == Reduce::kAny || reduce.reduce == Reduce::kAll;
  return counts ? (x != 0 ? 1 : 0) : x;
}

// A row, or a piece of one, and the range of elements that this thread has.
struct Row {
  i64 number, base, begin, end;  // base: the row's first element.
  bool there, first;             // first: this thread stores the result.
};

// The number of iterations is the same for all threads of a block.
__device__ i64 tiles_of(i64 rows, i64 group) {
  const i64 each = divide(threads(), group);
  return divide(rows + each - 1, each);
}
__device__ Row row_at(i64 tile, i64 group, i64 rows, i64 length, i64 pieces = 1, i64 piece = 0) {
  const i64 number = tile * divide(threads(), group) + divide(thread(), group), lane = thread() & (group - 1);
  if (number >= rows * pieces) return {number, 0, 0, 0, false, false};
  if (pieces == 1) return {number, number * length, number * length + lane, (number + 1) * length, true, lane == 0};
  const i64 row = divide(number, pieces), base = row * length, from = (number - row * pieces) * piece;
  return {number, base, base + from + lane, base + (from + piece < length ? from + piece : length), true, lane == 0};
}
__device__ Row row_at(i64 tile, const ReduceArguments& reduce) {
  return row_at(tile, reduce.group, reduce.rows, reduce.length, reduce.pieces, reduce.piece);
}

template <typename T>
__device__ Part<T> part_of(const ReduceArguments& reduce, const Row& row, T shift, Join how) {
  Part<T> mine{static_cast<T>(how == kMultiply ? 1 : 0), how == kAdd || how == kMultiply ? 0 : -1};
  for (i64 i = row.begin; i < row.end; i += reduce.group) {
    Part<T> here{0, reduce.in_positions != 0 ? pointer<const i64>(reduce.in_positions)[i] : i - row.base};
    load(reduce.in, i, reduce.dtype, &here.x);
    if (how == kAdd && reduce.stage != Stage::kJoin) here.x = counted(reduce, here.x, shift);
    if (reduce.reduce == Reduce::kNorm && how != kAdd) here.x = static_cast<T>(magnitude(static_cast<double>(here.x)));
    mine = join(mine, here, how);
  }
  return mine;
}

// Maxima and minima, with their positions.
template <typename T>
__device__ void extremes(const ReduceArguments& reduce, T* numbers, i64* positions) {
  const i64 tiles = tiles_of(reduce.rows * reduce.pieces, reduce.group);
  for (i64 tile = block(); tile < tiles; tile += blocks()) {
    const Row row = row_at(tile, reduce);
    const Join how = reduce.reduce == Reduce::kMin ? kSmallest : kLargest;
    const Part<T> found = join_group(part_of<T>(reduce, row, 0, how), how, reduce.group, numbers, positions);
    if (!row.first) continue;
    if (reduce.out != 0) store_number(reduce.out, row.number, reduce.out_dtype, found.x);
    if (reduce.positions != 0) pointer<i64>(reduce.positions)[row.number] = found.position;
  }
}

template <typename T>
__device__ void sums(const ReduceArguments& reduce, T* numbers, i64* positions) {
  const i64 tiles = tiles_of(reduce.rows * reduce.pieces, reduce.group);
  for (i64 tile = block(); tile < tiles; tile += blocks()) {
    const Row row = row_at(tile, reduce);
    const Join how = reduce.reduce == Reduce::kProduct ? kMultiply : kAdd;
    const T sum = join_group(part_of<T>(reduce, row, 0, how), how, reduce.group, numbers, positions).x;
    if (!row.first) continue;
    T made = sum;
    if (reduce.stage == Stage::kPieces) {
      store_number(reduce.out, row.number, reduce.out_dtype, made);
      continue;
    }
    if (reduce.reduce == Reduce::kAny) made = sum != 0 ? 1 : 0;
    if (reduce.reduce == Reduce::kAll) made = sum == static_cast<T>(reduce.count) ? 1 : 0;
    store_number(reduce.out, row.number, reduce.out_dtype, made);
  }
}

__device__ double mean_of(const ReduceArguments& reduce, const Row& row, double* numbers, i64* positions) {
  double sum = 0;
  for (i64 i = row.begin; i < row.end; i += reduce.group) sum += load_number(reduce.in, i, reduce.dtype);
  return join_group<double>({sum, 0}, kAdd, reduce.group, numbers, positions).x / static_cast<double>(reduce.length);
}

}  // namespace

KERNEL(kThreads) reduce_extremes_float(const ReduceArguments reduce) {
  __shared__ double numbers[kThreads];
  __shared__ i64 positions[kThreads];
  extremes<double>(reduce, numbers, positions);
}
KERNEL(kThreads) reduce_extremes_int(const ReduceArguments reduce) {
  __shared__ i64 numbers[kThreads], positions[kThreads];
  extremes<i64>(reduce, numbers, positions);
}
KERNEL(kThreads) reduce_sums_int(const ReduceArguments reduce) {
  __shared__ i64 numbers[kThreads], positions[kThreads];
  sums<i64>(reduce, numbers, positions);
}

KERNEL(kThreads) reduce_sums_float(const ReduceArguments reduce) {
  __shared__ double numbers[kThreads];
  __shared__ i64 positions[kThreads];
  const i64 tiles = tiles_of(reduce.rows * reduce.pieces, reduce.group);
  const auto length = static_cast<double>(reduce.count);
  const bool is_norm_of_extreme = reduce.reduce == Reduce::kNorm && magnitude(reduce.p) == __builtin_inf();
  for (i64 tile = block(); tile < tiles; tile += blocks()) {
    const Row row = row_at(tile, reduce);
    double shift = 0;  // Subtracted from each element.
    Join how = reduce.reduce == Reduce::kProduct ? kMultiply : kAdd;
    if (reduce.reduce == Reduce::kVariance || reduce.reduce == Reduce::kStd) {
      shift = mean_of(reduce, row, numbers, positions);
    } else if (reduce.reduce == Reduce::kLogSumExp) {
      shift = join_group(part_of<double>(reduce, row, 0, kLargest), kLargest, reduce.group, numbers, positions).x;
      if (reduce.length == 0) shift = 0;
      if (magnitude(shift) == __builtin_inf()) shift = 0;
    } else if (is_norm_of_extreme) {
      how = reduce.p > 0 ? kLargest : kSmallest;
    }
    const double sum = join_group(part_of<double>(reduce, row, shift, how), how, reduce.group, numbers, positions).x;
    if (!row.first) continue;
    double made = sum;
    if (reduce.stage == Stage::kPieces) {
      store_number(reduce.out, row.number, reduce.out_dtype, made);
      continue;
    }
    switch (reduce.reduce) {
      case Reduce::kAny:
        made = sum != 0 ? 1 : 0;
        break;
      case Reduce::kAll:
        made = sum == length ? 1 : 0;
        break;
      case Reduce::kMean:
        made = sum / length;
        break;
      case Reduce::kVariance:
      case Reduce::kStd:
        made = length - reduce.p > 0 ? sum / (length - reduce.p) : sum / 0.0;
        if (reduce.reduce == Reduce::kStd) made = __builtin_sqrt(made);
        if (reduce.mean != 0) store_float(reduce.mean, row.number, reduce.out_dtype, shift);
        break;
      case Reduce::kNorm:
        // For f32 results, sums are rounded to f32, so they overflow where f32 would.
        if (!is_norm_of_extreme)
          made = root(rounded(sum, reduce.out_dtype == kFloat64 ? kFloat64 : kFloat32), reduce.p);
        break;
      case Reduce::kLogSumExp:
        made = log(sum) + shift;
        break;
      default:
        break;
    }
    store_number(reduce.out, row.number, reduce.out_dtype, made);
  }
}

// log_softmax: x - log(sum(exp(x))), or softmax: exp of it.
KERNEL(kThreads) reduce_softmax(const SoftmaxArguments softmax) {
  __shared__ double numbers[kThreads];
  __shared__ i64 positions[kThreads];
  const ReduceArguments reduce{
      .in = softmax.in, .rows = softmax.rows, .length = softmax.length, .dtype = softmax.dtype, .group = softmax.group};
  const i64 tiles = tiles_of(softmax.rows, softmax.group);
  for (i64 tile = block(); tile < tiles; tile += blocks()) {
    const Row row = row_at(tile, softmax.group, softmax.rows, softmax.length);
    const double most =
        join_group(part_of<double>(reduce, row, 0, kLargest), kLargest, softmax.group, numbers, positions).x;
    double sum = 0;
    for (i64 i = row.begin; i < row.end; i += softmax.group) {
      sum += exp(load_float(softmax.in, i, softmax.dtype) - most);
    }
    sum = join_group<double>({sum, 0}, kAdd, softmax.group, numbers, positions).x;
    const double whole = log(sum);
    for (i64 i = row.begin; i < row.end; i += softmax.group) {
      const double x = load_float(softmax.in, i, softmax.dtype) - most;
      double made = softmax.is_log != 0 ? x - whole : exp(x) / sum;
      if (softmax.is_safe != 0 && most == -__builtin_inf()) made = 0;
      store_float(softmax.out, i, softmax.out_dtype, made);
    }
  }
}

KERNEL(kThreads) reduce_softmax_backward(const SoftmaxArguments softmax) {
  __shared__ double numbers[kThreads];
  __shared__ i64 positions[kThreads];
  const i64 tiles = tiles_of(softmax.rows, softmax.group);
  for (i64 tile = block(); tile < tiles; tile += blocks()) {
    const Row row = row_at(tile, softmax.group, softmax.rows, softmax.length);
    double sum = 0;
    for (i64 i = row.begin; i < row.end; i += softmax.group) {
      const double grad = load_float(softmax.grad, i, softmax.dtype);
      sum += softmax.is_log != 0 ? grad : grad * load_float(softmax.in, i, softmax.dtype);
    }
    sum = join_group<double>({sum, 0}, kAdd, softmax.group, numbers, positions).x;
    for (i64 i = row.begin; i < row.end; i += softmax.group) {
      const double grad = load_float(softmax.grad, i, softmax.dtype);
      const double made = load_float(softmax.in, i, softmax.dtype);
      store_float(softmax.out, i, softmax.out_dtype,
                  softmax.is_log != 0 ? grad - exp(made) * sum : (grad - sum) * made);
    }
  }
}

// (x - mean) / sqrt(variance + epsilon) * weight + bias
KERNEL(kThreads) reduce_layer_norm(const LayerNormArguments norm) {
  __shared__ double numbers[kThreads];
  __shared__ i64 positions[kThreads];
  const ReduceArguments reduce{
      .in = norm.in, .rows = norm.rows, .length = norm.length, .dtype = norm.dtype, .group = norm.group};
  const i64 tiles = tiles_of(norm.rows, norm.group);
  for (i64 tile = block(); tile < tiles; tile += blocks()) {
    const Row row = row_at(tile, norm.group, norm.rows, norm.length);
    const double mean = mean_of(reduce, row, numbers, positions);
    double sum = 0;
    for (i64 i = row.begin; i < row.end; i += norm.group) {
      const double x = load_float(norm.in, i, norm.dtype) - mean;
      sum += x * x;
    }
    sum = join_group<double>({sum, 0}, kAdd, norm.group, numbers, positions).x;
    const double scale = 1 / __builtin_sqrt(sum / static_cast<double>(norm.length) + norm.epsilon);
    for (i64 i = row.begin; i < row.end; i += norm.group) {
      double x = (load_float(norm.in, i, norm.dtype) - mean) * scale;
      if (norm.weight != 0) x *= load_float(norm.weight, i - row.base, norm.weight_dtype);
      if (norm.bias != 0) x += load_float(norm.bias, i - row.base, norm.weight_dtype);
      store_float(norm.out, i, norm.dtype, x);
    }
    if (!row.first) continue;
    if (norm.mean != 0) store_float(norm.mean, row.number, norm.mean_dtype, mean);
    if (norm.scale != 0) store_float(norm.scale, row.number, norm.mean_dtype, scale);
  }
}

}  // namespace torch_remote::worker::cuda
