// Bags of rows of a table (embedding_bag). One thread per element of the result.

#include "worker/targets/cuda/kernels/bag_arguments.h"
#include "worker/targets/cuda/kernels/sorted.h"

namespace torch_remote::worker::cuda {
namespace {

// The bag of index i: the last one that begins at i or before.
__device__ i64 bag_of(const i64* offsets, i64 bags, i64 i) {
  return partition_point(0, bags, [&](i64 bag) { return offsets[bag] <= i; }) - 1;
}

constexpr int kRowThreads = 128;

__device__ double norm_step(const RenormArguments& f, double so_far, double x) {
  const double size = x < 0 ? -x : x;
  switch (f.norm) {
    case RowNorm::kZero:
      return so_far + (x != 0 ? 1 : 0);
    case RowNorm::kL1:
      return so_far + size;
    case RowNorm::kL2:
      return so_far + x * x;
    case RowNorm::kMax:
      return so_far >= size || so_far != so_far ? so_far : size;
    case RowNorm::kMin:
      return so_far <= size || so_far != so_far ? so_far : size;
    default:
      return so_far + f64::pow(size, f.p);
  }
}

// Combines the threads' parts, and returns the norm to all threads.
__device__ double norm_of_block(const RenormArguments& f, double mine, double* shared) {
  const auto both = [&](double a, double b) {
    if (f.norm == RowNorm::kMax) return a >= b || a != a ? a : b;
    if (f.norm == RowNorm::kMin) return a <= b || a != a ? a : b;
    return a + b;
  };
  const double all = over_block<kRowThreads>(mine, shared, both);
  if (f.norm == RowNorm::kL2) return __builtin_sqrt(all);
  if (f.norm == RowNorm::kPower) return f64::pow(all, 1 / f.p);
  return all;
}

}  // namespace

KERNEL(256) bag_forward(const BagArguments f) {
  const auto* const offsets = pointer<const i64>(f.offsets);
  const auto* const indices = pointer<const i64>(f.indices);
  if (first_item() == 0 && f.offset_count != 0) {
    if (offsets[0] != 0) fail(f.failure, 0, offsets[0], kFirstOffset);
    const i64 last = offsets[f.offset_count - 1];
    if (last > f.count) fail(f.failure, 0, last, kLastOffset - f.count);
  }
  for (i64 i = first_item(); i < f.bag_count * f.length; i += all_threads()) {
    const i64 bag = divide(i, f.length), at = i - bag * f.length;
    const i64 first = offsets[bag] < 0 ? 0 : offsets[bag];
    i64 end = bag + 1 < f.offset_count ? offsets[bag + 1] : f.count;
    if (end > f.count) end = f.count;
    double sum = 0;
    i64 taken = 0, row_of_most = -1;
    for (i64 k = first; k < end; ++k) {
      const i64 row = indices[k];
      if (row < 0 || row >= f.rows) {
        if (at == 0) fail(f.failure, 0, row, f.rows);
        continue;
      }
      if (row == f.padding) continue;
      double x = load_float(f.weight, row * f.weight_strides[0] + at * f.weight_strides[1], f.dtype);
      if (f.scales != 0) x *= load_float(f.scales, k, f.dtype);
      if (f.mode != BagMode::kMax) {
        sum += x;
      } else if (taken == 0 || x > sum) {
        sum = x;
        row_of_most = row;
      }
      ++taken;
    }
    if (f.mode == BagMode::kMean && taken != 0) sum /= static_cast<double>(taken);
    store_float(f.out, i, f.dtype, sum);
    if (f.max_indices != 0) store_int(f.max_indices, i, f.index_dtype, row_of_most);
    if (f.sizes != 0 && at == 0) store_int(f.sizes, bag, f.index_dtype, taken);
  }
}

KERNEL(256) bag_numbers(const BagArguments f) {
  for (i64 i = first_item(); i < f.count; i += all_threads()) {
    store_int(f.bags, i, f.index_dtype, bag_of(pointer<const i64>(f.offsets), f.bag_count, i));
  }
}

KERNEL(256) bag_spread(const BagSpreadArguments f) {
  for (i64 i = first_item(); i < f.count * f.length; i += all_threads()) {
    const i64 k = divide(i, f.length), at = i - k * f.length;
    const i64 bag = f.bags != 0 ? pointer<const i64>(f.bags)[k] : k;
    double x = 0;
    if (bag >= 0 && bag < f.bag_count) {
      x = load_float(f.grad, bag * f.grad_strides[0] + at * f.grad_strides[1], f.dtype);
      if (f.sizes != 0) {
        const i64 size = pointer<const i64>(f.sizes)[bag];
        if (size > 1) x /= static_cast<double>(size);
      }
      if (f.scales != 0) x *= load_float(f.scales, k, f.dtype);
      if (f.keys != 0) {
        const auto* const keys = pointer<const u64>(f.keys);
        const u64 key = static_cast<u64>(pointer<const i64>(f.indices)[k]) ^ (u64{1} << 63);
        x /= static_cast<double>(first_key(keys, f.count, key + 1) - first_key(keys, f.count, key));
      }
    }
    store_float(f.values, i, f.dtype, x);
  }
}

KERNEL(256) bag_scales(const BagScaleArguments f) {
  for (i64 i = first_item(); i < f.count; i += all_threads()) {
    const i64 row = pointer<const i64>(f.indices)[i];
    double sum = 0;
    if (row < 0 || row >= f.rows) {
      fail(f.failure, 0, row, f.rows);
    } else if (row != f.padding) {
      const i64 bag = bag_of(pointer<const i64>(f.offsets), f.bag_count, i);
      for (i64 d = 0; bag >= 0 && d < f.length; ++d) {
        sum += load_float(f.grad, bag * f.grad_strides[0] + d * f.grad_strides[1], f.dtype) *
               load_float(f.weight, row * f.weight_strides[0] + d * f.weight_strides[1], f.dtype);
      }
    }
    store_float(f.out, i, f.dtype, sum);
  }
}

KERNEL(256) bag_mark(const RenormArguments f) {
  for (i64 i = first_item(); i < f.count; i += all_threads()) {
    const i64 row = pointer<const i64>(f.indices)[i];
    if (row < 0 || row >= f.rows) {
      fail(f.failure, 0, row, f.rows);
    } else {
      pointer<volatile u8>(f.marks)[row] = 1;
    }
  }
}

// One block per row.
KERNEL(kRowThreads) bag_renorm(const RenormArguments f) {
  __shared__ double shared[kRowThreads];
  for (i64 row = block(); row < f.rows; row += blocks()) {
    if (pointer<const u8>(f.marks)[row] == 0) continue;
    const i64 first = row * f.weight_strides[0];
    double norm = f.norm == RowNorm::kMin ? __builtin_inf() : 0;
    for (i64 i = thread(); i < f.length; i += kRowThreads) {
      norm = norm_step(f, norm, load_float(f.weight, first + i * f.weight_strides[1], f.dtype));
    }
    norm = norm_of_block(f, norm, shared);
    if (!(norm > f.most)) continue;
    const double scale = f.most / (norm + 1e-7);
    for (i64 i = thread(); i < f.length; i += kRowThreads) {
      const i64 at = first + i * f.weight_strides[1];
      store_float(f.weight, at, f.dtype, load_float(f.weight, at, f.dtype) * scale);
    }
  }
}

}  // namespace torch_remote::worker::cuda
