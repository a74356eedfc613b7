// Elements that are not 0, and unique values: the size of the result depends on the data.

#include "worker/targets/cuda/kernels/search_arguments.h"
#include "worker/targets/cuda/kernels/sorted.h"

namespace torch_remote::worker::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kEach = kSelectChunk / kThreads;

__device__ bool is_set(u64 in, i64 at, i64 dtype) {
  return is_float(dtype) ? load_float(in, at, dtype) != 0 : load_int(in, at, dtype) != 0;
}

// The sum over the previous threads; *all is the block's total.
__device__ i64 sum_before(i64 mine, i64* shared, i64* all) {
  sync();
  shared[thread()] = mine;
  for (int apart = 1; apart < kThreads; apart *= 2) {
    sync();
    i64 more = shared[thread()];
    if (thread() >= apart) more += shared[thread() - apart];
    sync();
    shared[thread()] = more;
  }
  sync();
  *all = shared[kThreads - 1];
  return shared[thread()] - mine;
}

}  // namespace

KERNEL(kThreads) select_count(const SelectCountArguments select) {
  __shared__ i64 shared[kThreads];
  const i64 first = block() * kSelectChunk + thread() * kEach;
  i64 mine = 0, all = 0;
  for (int i = 0; i < kEach; ++i) mine += first + i < select.count && is_set(select.in, first + i, select.dtype);
  sum_before(mine, shared, &all);
  if (thread() == 0) pointer<i64>(select.counts)[block()] = all;
}

// One block.
KERNEL(kThreads) select_sum(const SelectSumArguments select) {
  __shared__ i64 shared[kThreads];
  i64 before = 0;
  auto* const counts = pointer<i64>(select.counts);
  for (i64 tile = 0; tile < select.count; tile += kThreads) {
    const i64 at = tile + thread();
    const i64 mine = at < select.count ? counts[at] : 0;
    i64 all = 0;
    const i64 sum = sum_before(mine, shared, &all);
    if (at < select.count) counts[at] = before + sum;
    before += all;
  }
  if (thread() == 0) counts[select.count] = before;
}

KERNEL(kThreads) select_positions(const SelectPositionsArguments select) {
  __shared__ i64 shared[kThreads];
  const i64 first = block() * kSelectChunk + thread() * kEach;
  i64 mine = 0, all = 0;
  for (int i = 0; i < kEach; ++i) mine += first + i < select.count && is_set(select.in, first + i, select.dtype);
  i64 to = pointer<const i64>(select.counts)[block()] + sum_before(mine, shared, &all);
  for (int i = 0; i < kEach; ++i) {
    if (first + i >= select.count || !is_set(select.in, first + i, select.dtype)) continue;
    if (to >= select.most) return;
    if (select.values != 0) {
      move(select.values, to, select.from, first + i, select.item);
    } else {
      i64 rest = first + i;
      for (i64 d = select.rank - 1; d >= 0; --d) {
        const i64 next = divide(rest, select.sizes[d]);
        pointer<i64>(select.positions)[to * select.position_stride + d * select.dim_stride] =
            rest - next * select.sizes[d];
        rest = next;
      }
    }
    ++to;
  }
}

KERNEL(kThreads) unique_flags(const UniqueFlagsArguments unique) {
  const auto* const keys = pointer<const u64>(unique.keys);
  for (i64 i = first_item(); i < unique.count; i += all_threads()) {
    pointer<u8>(unique.flags)[i] = i == 0 || keys[i] != keys[i - 1] || (unique.floats != 0 && keys[i] == kNanKey);
  }
}

KERNEL(kThreads) unique_write(const UniqueWriteArguments unique) {
  __shared__ i64 shared[kThreads];
  const i64 first = block() * kSelectChunk + thread() * kEach;
  const auto* const flags = pointer<const u8>(unique.flags);
  i64 mine = 0, all = 0;
  for (int i = 0; i < kEach; ++i) mine += first + i < unique.count && flags[first + i] != 0;
  i64 number = pointer<const i64>(unique.counts)[block()] + sum_before(mine, shared, &all) - 1;
  for (int i = 0; i < kEach && first + i < unique.count; ++i) {
    const i64 position = unique.sorted != 0 ? pointer<const u32>(unique.sorted)[first + i] : first + i;
    if (flags[first + i] != 0) {
      ++number;
      move(unique.values, number, unique.in, position, unique.item);
      if (unique.begins != 0) pointer<i64>(unique.begins)[number] = first + i;
    }
    if (unique.inverse != 0) pointer<i64>(unique.inverse)[position] = number;
  }
}

KERNEL(kThreads) unique_count(const UniqueCountArguments unique) {
  const auto* const begins = pointer<const i64>(unique.begins);
  for (i64 i = first_item(); i < unique.count; i += all_threads()) {
    pointer<i64>(unique.out)[i] = (i + 1 < unique.count ? begins[i + 1] : unique.end) - begins[i];
  }
}

KERNEL(kThreads) select_scatter(const SelectScatterArguments select) {
  __shared__ i64 shared[kThreads];
  const auto* const counts = pointer<const i64>(select.counts);
  if (block() == 0 && thread() == 0 && counts[select.chunks] > select.bound) {
    fail(select.failure, 0, counts[select.chunks], select.bound);
  }
  const i64 first = block() * kSelectChunk + thread() * kEach;
  i64 mine = 0, all = 0;
  for (int i = 0; i < kEach; ++i) mine += first + i < select.count && is_set(select.in, first + i, select.dtype);
  i64 from = counts[block()] + sum_before(mine, shared, &all);
  for (int i = 0; i < kEach; ++i) {
    if (first + i >= select.count || !is_set(select.in, first + i, select.dtype)) continue;
    if (from < select.bound) move(select.out, first + i, select.source, from, select.item);
    ++from;
  }
}

// One block.
KERNEL(kThreads) repeat_count(const RepeatCountArguments repeat) {
  __shared__ i64 least;
  if (thread() == 0) least = 0;
  sync();
  const auto* const repeats = pointer<const i64>(repeat.repeats);
  for (i64 i = thread(); i < repeat.count; i += kThreads) {
    if (repeats[i] < 0) __atomic_fetch_min(&least, repeats[i], __ATOMIC_RELAXED);
  }
  sync();
  if (thread() != 0) return;
  const i64 total = repeat.count == 0 ? 0 : pointer<const i64>(repeat.sums)[repeat.count - 1];
  if (repeat.total != 0) *pointer<i64>(repeat.total) = least < 0 ? -1 : total;
  if (repeat.found < 0) return;
  if (total != repeat.found) {
    fail(repeat.failure, 0, total < 0 ? 0 : total, repeat.found);
  } else if (least < 0) {
    fail(repeat.failure, 0, least, repeat.found);
  }
}

// If a number is negative, sums may be anything, but every write stays in bounds.
KERNEL(kThreads) repeat_positions(const RepeatArguments repeat) {
  const auto* const sums = pointer<const i64>(repeat.sums);
  for (i64 i = first_item(); i < repeat.found; i += all_threads()) {
    const i64 found = partition_point(0, repeat.count - 1, [&](i64 at) { return sums[at] <= i; });
    store_int(repeat.out, i, repeat.out_dtype, found);
  }
}

}  // namespace torch_remote::worker::cuda
