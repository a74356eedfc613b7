// Searches in sorted rows, and statistics of sorted rows.

#include "worker/targets/cuda/kernels/search_arguments.h"
#include "worker/targets/cuda/kernels/sorted.h"

namespace torch_remote::worker::cuda {
namespace {

constexpr u64 kSign = u64{1} << 63;

__device__ bool is_passed(double bound, double x, bool right) { return right ? !(bound > x) : !(bound >= x); }
__device__ bool is_passed(i64 bound, i64 x, bool right) { return right ? bound <= x : bound < x; }

// The number of the row's bounds that x passes.
template <typename T>
__device__ i64 search(const SearchArguments& search, i64 row, T x) {
  const i64 begin = row * search.length;
  i64 low = 0, high = search.length;
  while (low < high) {
    const i64 middle = (low + high) / 2;
    i64 at = middle;
    if (search.sorter != 0) at = pointer<const i64>(search.sorter)[begin + middle];
    if (at < 0 || at >= search.length) {
      fail(search.failure, 0, at, search.length);
      return 0;
    }
    if (is_passed(load_number<T>(search.bounds, begin + at, search.dtype), x, search.right != 0)) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

// x y, in 128 bits.
struct Wide {
  u64 high, low;
};
__device__ bool operator>(const Wide& a, const Wide& b) { return a.high != b.high ? a.high > b.high : a.low > b.low; }
__device__ Wide product(u64 x, u64 y) {
  const auto made = static_cast<unsigned __int128>(x) * y;
  return {static_cast<u64>(made >> 64), static_cast<u64>(made)};
}

}  // namespace

KERNEL(256) search_sorted(const SearchArguments f) {
  for (i64 i = first_item(); i < f.count; i += all_threads()) {
    const i64 row = f.row != 0 ? divide(i, f.row) : 0;
    i64 found = 0;
    if (is_float(f.dtype)) {
      found = search(f, row, f.in != 0 ? load_float(f.in, i, f.dtype) : rounded(f.number, f.dtype));
    } else {
      found = search(f, row, f.in != 0 ? load_int(f.in, i, f.dtype) : f.int_number);
    }
    store_int(f.out, i, f.out_dtype, found);
  }
}

KERNEL(256) search_members(const MemberArguments f) {
  const auto* const sorted = pointer<const u64>(f.sorted);
  for (i64 i = first_item(); i < f.count; i += all_threads()) {
    const u64 key = pointer<const u64>(f.keys)[i];
    const i64 at = first_key(sorted, f.length, key);
    const bool is_number = f.floats == 0 || key != kNanKey;
    pointer<u8>(f.out)[i] = (is_number && at < f.length && sorted[at] == key) != (f.inverts != 0);
  }
}

// Histogram of integers, exact: the last bin that begins at x or before.
KERNEL(256) search_histogram_int(const HistogramArguments f) {
  i64 from = f.int_from, to = f.int_to;
  if (f.least != 0) {
    from = load_int(f.least, 0, f.dtype);
    to = load_int(f.most, 0, f.dtype);
    if (from == to) {  // Does not overflow for the least and greatest integer.
      from -= from != -0x7FFFFFFFFFFFFFFF - 1;
      to += to != 0x7FFFFFFFFFFFFFFF;
    }
  }
  const u64 width = static_cast<u64>(to) - static_cast<u64>(from), bins = static_cast<u64>(f.bins);
  for (i64 i = first_item(); i < f.count; i += all_threads()) {
    const i64 x = load_int(f.in, i, f.dtype);
    if (x < from || x > to) continue;
    const u64 behind = static_cast<u64>(x) - static_cast<u64>(from);
    auto bin = static_cast<u64>(static_cast<double>(behind) / static_cast<double>(width) * static_cast<double>(bins));
    if (bin >= bins) bin = bins - 1;
    while (bin > 0 && product(bin, width) > product(behind, bins)) --bin;
    while (bin + 1 < bins && !(product(bin + 1, width) > product(behind, bins))) ++bin;
    __atomic_fetch_add(pointer<u64>(f.counts) + bin, u64{1}, __ATOMIC_RELAXED);
  }
}

KERNEL(256) search_histogram(const HistogramArguments f) {
  double from = f.from, to = f.to;
  if (f.least != 0) {
    from = load_float(f.least, 0, f.dtype);
    to = load_float(f.most, 0, f.dtype);
    if (!(from - from == 0) || !(to - to == 0)) {
      if (first_item() == 0) fail(f.failure, 0, __builtin_bit_cast(i64, from), __builtin_bit_cast(i64, to));
      return;
    }
    if (from == to) {
      from -= 1;
      to += 1;
    }
  }
  // As torch computes it, in f32 or f64; for half types, rounded at each step.
  const i64 dtype = f.dtype;
  const double width = rounded(to - from, dtype), bins = static_cast<double>(f.bins);
  for (i64 i = first_item(); i < f.count; i += all_threads()) {
    const double x = load_float(f.in, i, dtype);
    if (!(x >= from && x <= to)) continue;
    const double scaled = rounded(rounded(x - from, dtype) * bins, dtype);
    const double position = rounded(scaled / width, dtype);
    // NaN, if the width is infinite or is rounded to 0, is in the first bin.
    i64 bin = position >= bins ? f.bins - 1 : position > 0 ? static_cast<i64>(position) : 0;
    __atomic_fetch_add(pointer<u64>(f.counts) + bin, u64{1}, __ATOMIC_RELAXED);
  }
}

KERNEL(256) search_histogram_out(const HistogramArguments f) {
  for (i64 i = first_item(); i < f.bins; i += all_threads()) {
    store_float(f.out, i, f.dtype, static_cast<double>(pointer<const u64>(f.counts)[i]));
  }
}

// One thread.
KERNEL(32) search_count_bound(const CountBoundArguments f) {
  if (thread() != 0) return;
  const auto* const keys = pointer<const u64>(f.keys);
  const auto least = static_cast<i64>(keys[0] ^ kSign), most = static_cast<i64>(keys[f.count - 1] ^ kSign);
  *pointer<i64>(f.out) = least < 0 ? -1 : most + 1;
}

KERNEL(256) search_count(const CountArguments f) {
  const auto* const keys = pointer<const u64>(f.keys);
  for (i64 bin = first_item(); bin < f.bins; bin += all_threads()) {
    const u64 key = static_cast<u64>(bin) ^ kSign;
    const i64 begin = first_key(keys, f.count, key), end = first_key(keys, f.count, key + 1);
    if (f.weights == 0) {
      pointer<i64>(f.out)[bin] = end - begin;
      continue;
    }
    double sum = 0;
    for (i64 i = begin; i < end; ++i) {
      sum = rounded(sum + load_float(f.weights, pointer<const u32>(f.positions)[i], f.dtype), f.dtype);
    }
    store_float(f.out, bin, f.dtype, sum);
  }
}

KERNEL(256) search_row_statistic(const RowStatisticArguments f) {
  for (i64 row = first_item(); row < f.rows; row += all_threads()) {
    const auto* const keys = pointer<const u64>(f.keys) + row * f.length;
    const i64 numbers = f.floats != 0 ? first_key(keys, f.length, kNanKey) : f.length;
    i64 found = 0;
    if (f.statistic == RowStatistic::kMode) {
      i64 most = 0, begin = 0;
      for (i64 i = 0; i < f.length; ++i) {
        const bool begins = i == 0 || keys[i] != keys[i - 1] || i >= numbers;
        if (begins) begin = i;
        if (i - begin + 1 <= most) continue;
        most = i - begin + 1;
        found = i;
      }
    } else if (f.statistic == RowStatistic::kMedian && numbers < f.length) {
      found = numbers;
    } else {
      found = numbers == 0 ? 0 : (numbers - 1) / 2;
    }
    const i64 position = pointer<const u32>(f.positions)[row * f.length + found];
    const i64 outer = divide(row, f.inner), inner = row - outer * f.inner;
    if (f.values != 0) move(f.values, row, f.in, (outer * f.length + position) * f.inner + inner, f.item);
    if (f.indices != 0) pointer<i64>(f.indices)[row] = position;
  }
}

}  // namespace torch_remote::worker::cuda
