// Sorts by 64-bit keys that have the order of the elements. A bitonic network sorts chunks in shared memory. Then runs
// are merged in pairs: each element finds its position by a binary search in the other run. Pairs of key and position
// are unique, so the sort is stable.

#include "worker/targets/cuda/kernels/sorted.h"

namespace torch_remote::worker::cuda {
namespace {

constexpr u64 kSign = u64{1} << 63;

// NaN comes last; all NaNs are equal, and so are both zeros.
__device__ u64 key_of(u64 in, i64 at, i64 dtype) {
  if (!is_float(dtype)) return static_cast<u64>(load_int(in, at, dtype)) ^ kSign;
  const double x = load_float(in, at, dtype);
  if (x != x) return kNanKey;
  if (x == 0) return kSign;
  const auto bits = __builtin_bit_cast(u64, x);
  return (bits & kSign) != 0 ? ~bits : bits | kSign;
}

__device__ bool is_before(u64 a, u32 a_position, u64 b, u32 b_position) {
  return a != b ? a < b : a_position < b_position;
}

}  // namespace

KERNEL(256) sort_keys(const SortKeysArguments sort) {
  const i64 count = sort.outer * sort.length * sort.inner;
  for (i64 i = first_item(); i < count; i += all_threads()) {
    const i64 row = divide(i, sort.length), position = i - row * sort.length;
    const i64 outer = divide(row, sort.inner), inner = row - outer * sort.inner;
    const u64 key = key_of(sort.in, (outer * sort.length + position) * sort.inner + inner, sort.dtype);
    pointer<u64>(sort.keys)[i] = sort.descending != 0 ? ~key : key;
  }
}

// One block per chunk, with at most chunk / 2 threads.
KERNEL(256) sort_chunks(const SortChunksArguments sort) {
  __shared__ u64 keys[kSortChunk];
  __shared__ u32 positions[kSortChunk];
  const i64 chunks = divide(sort.length + sort.chunk - 1, sort.chunk);
  const i64 row = divide(block(), chunks), begin = (block() - row * chunks) * sort.chunk;
  auto* const from = pointer<u64>(sort.keys) + row * sort.length;
  auto* const to = pointer<u32>(sort.positions) + row * sort.length;
  for (i64 i = thread(); i < sort.chunk; i += threads()) {
    const bool there = begin + i < sort.length;
    keys[i] = there ? from[begin + i] : ~u64{0};
    positions[i] = there ? static_cast<u32>(begin + i) : ~u32{0};
  }
  for (i64 size = 2; size <= sort.chunk; size *= 2) {
    for (i64 apart = size / 2; apart > 0; apart /= 2) {
      sync();
      for (i64 pair = thread(); pair < sort.chunk / 2; pair += threads()) {
        const i64 low = 2 * pair - (pair & (apart - 1)), high = low + apart;
        const bool up = (low & size) == 0;
        const u64 a = keys[low], b = keys[high];
        const u32 a_position = positions[low], b_position = positions[high];
        if (is_before(b, b_position, a, a_position) == up) {
          keys[low] = b;
          keys[high] = a;
          positions[low] = b_position;
          positions[high] = a_position;
        }
      }
    }
  }
  sync();
  for (i64 i = thread(); i < sort.chunk && begin + i < sort.length; i += threads()) {
    from[begin + i] = keys[i];
    to[begin + i] = positions[i];
  }
}

KERNEL(256) sort_merge(const SortMergeArguments sort) {
  for (i64 i = first_item(); i < sort.rows * sort.length; i += all_threads()) {
    const i64 row = divide(i, sort.length), at = i - row * sort.length;
    const u64* const keys = pointer<const u64>(sort.keys) + row * sort.length;
    const u32* const positions = pointer<const u32>(sort.positions) + row * sort.length;
    const u64 key = keys[at];
    const u32 position = positions[at];
    const i64 run = divide(at, sort.width), other = (run ^ 1) * sort.width;
    const i64 begin = other < sort.length ? other : sort.length;
    const i64 end = other + sort.width < sort.length ? other + sort.width : sort.length;
    const i64 before =
        partition_point(begin, end, [&](i64 i) { return is_before(keys[i], positions[i], key, position); });
    const i64 to = row * sort.length + (run & ~i64{1}) * sort.width + (at - run * sort.width) + (before - begin);
    pointer<u64>(sort.out_keys)[to] = key;
    pointer<u32>(sort.out_positions)[to] = position;
  }
}

KERNEL(256) sort_take(const SortTakeArguments take) {
  const i64 count = take.outer * take.count * take.inner;
  for (i64 i = first_item(); i < count; i += all_threads()) {
    const i64 line = divide(i, take.inner), inner = i - line * take.inner;
    const i64 outer = divide(line, take.count), k = line - outer * take.count;
    const i64 row = outer * take.inner + inner;
    const i64 position = pointer<const u32>(take.positions)[row * take.length + take.first + k];
    if (take.values != 0)
      move(take.values, i, take.in, (outer * take.length + position) * take.inner + inner, take.item);
    if (take.indices != 0) pointer<i64>(take.indices)[i] = position;
  }
}

}  // namespace torch_remote::worker::cuda
