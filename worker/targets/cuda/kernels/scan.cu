// Running sums, maxima and minima along a dim. A line of contiguous elements is scanned by a block, tile by tile. If
// lines are interleaved, each thread scans one. Sums are f64 or i64.

#include "worker/targets/cuda/kernels/device.h"

namespace torch_remote::worker::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kEach = 4;

// Numbers of type double or i64.
template <typename T>
struct Numbers {
  using State = T;
  __device__ static T load(const ScanArguments& scan, i64 at, i64) {
    const T x = is_float(scan.in_dtype) ? static_cast<T>(load_float(scan.in, at, scan.in_dtype))
                                        : static_cast<T>(load_int(scan.in, at, scan.in_dtype));
    if constexpr (__is_same(T, double)) return rounded(x, scan.out_dtype);
    return x;
  }
  __device__ static void store(const ScanArguments& scan, i64 at, T x) {
    store_number(scan.out, at, scan.out_dtype, x);
  }
};

struct FloatSum : Numbers<double> {
  __device__ static double neutral() { return 0; }
  __device__ static double combine(const ScanArguments&, double a, double b) { return a + b; }
};
struct IntSum : Numbers<i64> {
  __device__ static i64 neutral() { return 0; }
  __device__ static i64 combine(const ScanArguments&, i64 a, i64 b) {
    return static_cast<i64>(static_cast<u64>(a) + static_cast<u64>(b));
  }
};

// The maximum or minimum so far, and the last position that has it. NaN is greatest. No position: -1.
template <typename T>
struct Found {
  T value;
  i64 position;
};
template <typename T>
struct Extreme {
  using State = Found<T>;
  __device__ static State neutral() { return {0, -1}; }
  __device__ static State load(const ScanArguments& scan, i64 at, i64 position) {
    return {Numbers<T>::load(scan, at, position), position};
  }
  __device__ static void store(const ScanArguments& scan, i64 at, State x) {
    Numbers<T>::store(scan, at, x.value);
    pointer<i64>(scan.positions)[at] = x.position;
  }
  __device__ static State combine(const ScanArguments& scan, State a, State b) {
    if (a.position < 0 || b.position < 0) return a.position < 0 ? b : a;
    const bool nan = a.value != a.value;
    const bool later = scan.minimum != 0 ? b.value <= a.value : b.value >= a.value;
    return b.value != b.value || (!nan && later) ? b : a;
  }
};

template <typename Scan>
__device__ void scan_row(const ScanArguments& scan, i64 line) {
  using State = typename Scan::State;
  __shared__ State shared[kThreads];
  const i64 outer = divide(line, scan.inner), inner = line - outer * scan.inner;
  const i64 begin = outer * scan.length * scan.inner + inner;
  State before = Scan::neutral();
  for (i64 tile = 0; tile < scan.length; tile += kThreads * kEach) {
    State own[kEach];
    State sum = Scan::neutral();
    const i64 first = tile + thread() * kEach;
    for (int i = 0; i < kEach; ++i) {
      if (first + i < scan.length)
        sum = Scan::combine(scan, sum, Scan::load(scan, begin + (first + i) * scan.inner, first + i));
      own[i] = sum;
    }
    sync();  // The previous tile has been read.
    shared[thread()] = sum;
    for (int apart = 1; apart < kThreads; apart *= 2) {
      sync();
      State more = shared[thread()];
      if (thread() >= apart) more = Scan::combine(scan, shared[thread() - apart], more);
      sync();
      shared[thread()] = more;
    }
    sync();
    const State mine = thread() == 0 ? before : Scan::combine(scan, before, shared[thread() - 1]);
    for (int i = 0; i < kEach; ++i) {
      if (first + i < scan.length)
        Scan::store(scan, begin + (first + i) * scan.inner, Scan::combine(scan, mine, own[i]));
    }
    before = Scan::combine(scan, before, shared[kThreads - 1]);
  }
}

template <typename Scan>
__device__ void scan_rows(const ScanArguments& scan) {
  for (i64 line = block(); line < scan.outer * scan.inner; line += blocks()) scan_row<Scan>(scan, line);
}

template <typename Scan>
__device__ void scan_columns(const ScanArguments& scan) {
  for (i64 line = first_item(); line < scan.outer * scan.inner; line += all_threads()) {
    const i64 outer = divide(line, scan.inner), inner = line - outer * scan.inner;
    i64 at = outer * scan.length * scan.inner + inner;
    auto sum = Scan::neutral();
    for (i64 i = 0; i < scan.length; ++i, at += scan.inner) {
      sum = Scan::combine(scan, sum, Scan::load(scan, at, i));
      Scan::store(scan, at, sum);
    }
  }
}

}  // namespace

#define SCAN(name, Scan)                                                            \
  KERNEL(kThreads) name##_rows(const ScanArguments scan) { scan_rows<Scan>(scan); } \
  KERNEL(kThreads) name##_columns(const ScanArguments scan) { scan_columns<Scan>(scan); }

SCAN(scan_sum_float, FloatSum)
SCAN(scan_sum_int, IntSum)
SCAN(scan_extreme_float, Extreme<double>)
SCAN(scan_extreme_int, Extreme<i64>)

}  // namespace torch_remote::worker::cuda
