// Reads and writes at indices.

#include "worker/targets/cuda/kernels/device.h"

namespace torch_remote::worker::cuda {
namespace {

struct Spot {
  i64 self, value;
  bool good;
};

// Locates point p over the dims [begin, end). Reads the indices if `looks`.
__device__ Spot find(const IndexArguments& index, i64 p, i64 begin, i64 end, bool looks) {
  Spot spot{0, 0, true};
  i64 at[kMaxIndices] = {};
  for (i64 d = end - 1; d >= begin; --d) {
    const i64 rest = divide(p, index.sizes[d]), here = p - rest * index.sizes[d];
    p = rest;
    spot.self += here * index.self_strides[d];
    spot.value += here * index.value_strides[d];
#pragma unroll
    for (int k = 0; k < kMaxIndices; ++k) at[k] += here * index.index_strides[k][d];
  }
  if (!looks) return spot;
#pragma unroll
  for (int k = 0; k < kMaxIndices; ++k) {
    if (k >= index.indices) continue;
    i64 position = pointer<const i64>(index.index[k])[at[k]];
    if (position == index.skipped) {
      spot.good = false;
      continue;
    }
    const i64 given = position;
    if (index.allows_negative != 0 && position < 0) position += index.bounds[k];
    if (position < 0 || position >= index.bounds[k]) {
      fail(index.failure, static_cast<u32>(k), given, index.bounds[k]);
      spot.good = false;
      continue;
    }
    spot.self += position * index.steps[k];
  }
  return spot;
}

__device__ i64 combine(const IndexApplyArguments& apply, i64 a, i64 b) {
  switch (apply.combine) {
    case Combine::kProduct:
      return static_cast<i64>(static_cast<u64>(a) * static_cast<u64>(b));
    case Combine::kMax:
      return a > b ? a : b;
    case Combine::kMin:
      return a < b ? a : b;
    default:
      return static_cast<i64>(static_cast<u64>(a) + static_cast<u64>(b) * static_cast<u64>(apply.int_alpha));
  }
}
__device__ double combine(const IndexApplyArguments& apply, double a, double b) {
  switch (apply.combine) {
    case Combine::kProduct:
      return rounded(a * b, apply.dtype);
    case Combine::kMax:
      return a != a || a > b ? a : b;
    case Combine::kMin:
      return a != a || a < b ? a : b;
    default:
      return rounded(a + rounded(b * apply.alpha, apply.dtype), apply.dtype);
  }
}
// The mean of `count` elements.
__device__ i64 mean(i64 sum, i64 count) {
  const i64 quotient = sum / count;
  return quotient - (sum % count != 0 && sum < 0 ? 1 : 0);
}
__device__ double mean(double sum, i64 count) { return sum / static_cast<double>(count); }

// Combines the points that share an element, in their order; `sorted` is the position of the first one among the sorted
// keys.
template <typename T>
__device__ void fold(const IndexApplyArguments& apply, i64 sorted, u64 key, i64 self, i64 value) {
  const u64* const keys = pointer<const u64>(apply.keys);
  const u32* const positions = pointer<const u32>(apply.positions);
  T sum = 0;
  i64 count = 0;
  if (apply.with_self != 0) {
    sum = load_number<T>(apply.index.self, self, apply.dtype);
    count = 1;
  }
  for (i64 i = sorted; i < apply.key_count && keys[i] == key; ++i) {
    const i64 at = find(apply.index, positions[i], 0, apply.key_dims, false).value + value;
    const T x = load_number<T>(apply.index.values, at, apply.dtype);
    sum = count == 0 && apply.combine != Combine::kSum ? x : combine(apply, sum, x);
    ++count;
  }
  if (apply.combine == Combine::kMean) sum = mean(sum, count);
  store_number(apply.index.self, self, apply.dtype, sum);
}

}  // namespace

KERNEL(256) index_read(const IndexArguments index) {
  for (i64 p = first_item(); p < index.count; p += all_threads()) {
    const Spot spot = find(index, p, 0, index.rank, true);
    if (spot.good) move(index.values, spot.value, index.self, spot.self, index.item);
  }
}

// All points of one element write the same value.
KERNEL(256) index_write(const IndexArguments index) {
  for (i64 p = first_item(); p < index.count; p += all_threads()) {
    const Spot spot = find(index, p, 0, index.rank, true);
    if (spot.good) move<true>(index.self, spot.self, index.values, spot.value, index.item);
  }
}

KERNEL(256) index_write_masked(const IndexMaskedArguments masked) {
  const IndexArguments& index = masked.index;
  const auto* const numbers = pointer<const i64>(index.index[1]);
  if (numbers != nullptr && first_item() == 0 && numbers[masked.last] != index.bounds[1]) {
    fail(index.failure, 0, numbers[masked.last], index.bounds[1]);
  }
  for (i64 p = first_item(); p < index.count; p += all_threads()) {
    i64 rest = p, self = 0, mask = 0, value = 0, number = 0;
    for (i64 d = index.rank - 1; d >= 0; --d) {
      const i64 next = divide(rest, index.sizes[d]), here = rest - next * index.sizes[d];
      rest = next;
      self += here * index.self_strides[d];
      mask += here * index.index_strides[0][d];
      number += here * index.index_strides[1][d];
      value += here * index.value_strides[d];
    }
    if (pointer<const u8>(index.index[0])[mask] == 0) continue;
    if (numbers != nullptr) {
      const i64 before = numbers[number] - 1;
      if (before >= index.bounds[1]) continue;
      value += before * index.steps[1];
    }
    if (masked.adds == 0) {
      move(index.self, self, index.values, value, index.item);
    } else if (is_float(masked.dtype)) {
      store_float(index.self, self, masked.dtype,
                  load_float(index.self, self, masked.dtype) + load_float(index.values, value, masked.dtype));
    } else {
      store_int(index.self, self, masked.dtype,
                load_int(index.self, self, masked.dtype) + load_int(index.values, value, masked.dtype));
    }
  }
}

KERNEL(256) index_keys(const IndexKeysArguments keys) {
  for (i64 p = first_item(); p < keys.key_count; p += all_threads()) {
    const Spot spot = find(keys.index, p, 0, keys.key_dims, true);
    pointer<u64>(keys.keys)[p] = spot.good ? static_cast<u64>(spot.self) : kNoKey;
  }
}

KERNEL(256) index_apply(const IndexApplyArguments apply) {
  const i64 each = apply.key_count == 0 ? 0 : divide(apply.index.count, apply.key_count);
  const u64* const keys = pointer<const u64>(apply.keys);
  for (i64 i = first_item(); i < apply.index.count; i += all_threads()) {
    const i64 sorted = divide(i, each);
    const u64 key = keys[sorted];
    if (key == kNoKey) continue;
    const Spot plain = find(apply.index, i - sorted * each, apply.key_dims, apply.index.rank, false);
    const i64 self = static_cast<i64>(key) + plain.self;
    if (apply.combine == Combine::kSet) {
      if (sorted + 1 < apply.key_count && keys[sorted + 1] == key) continue;  // A later point overwrites it.
      const i64 p = pointer<const u32>(apply.positions)[sorted];
      const i64 value = find(apply.index, p, 0, apply.key_dims, false).value + plain.value;
      move(apply.index.self, self, apply.index.values, value, apply.index.item);
      continue;
    }
    if (sorted != 0 && keys[sorted - 1] == key) continue;
    if (is_float(apply.dtype)) {
      fold<double>(apply, sorted, key, self, plain.value);
    } else {
      fold<i64>(apply, sorted, key, self, plain.value);
    }
  }
}

// -- NLL loss in one block, so that its sums have a fixed order

KERNEL(256) nll_loss(const NllLossArguments loss) {
  __shared__ double sums[256], weights[256];
  double sum = 0, weight_sum = 0;
  for (i64 row = thread(); row < loss.rows; row += 256) {
    const i64 target = pointer<const i64>(loss.target)[row];
    double weight = 0, x = 0;
    if (target != loss.ignored) {
      if (target < 0 || target >= loss.classes) {
        fail(loss.failure, 0, target, loss.classes);
      } else {
        weight = loss.weight != 0 ? load_float(loss.weight, target, loss.dtype) : 1;
        x = -load_float(loss.in, row * loss.row_stride + target * loss.class_stride, loss.dtype) * weight;
      }
    }
    if (loss.reduction == 0) store_float(loss.out, row, loss.dtype, x);
    sum += x;
    weight_sum += weight;
  }
  sum = sum_of_block<256>(sum, sums);
  weight_sum = sum_of_block<256>(weight_sum, weights);
  if (thread() != 0) return;
  if (loss.reduction != 0) {
    store_float(loss.out, 0, loss.dtype, loss.reduction == 1 ? sum / weight_sum : sum);
  }
  if (loss.total != 0) store_float(loss.total, 0, loss.dtype, loss.reduction == 0 ? 0 : weight_sum);
}

}  // namespace torch_remote::worker::cuda
