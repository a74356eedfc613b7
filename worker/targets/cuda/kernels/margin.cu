// Margin losses: how far the scores of other classes are below that of the right one, and the gradients. One block per
// row. Sums are f64, in a fixed order.

#include "worker/targets/cuda/kernels/device.h"
#include "worker/targets/cuda/kernels/margin_arguments.h"

namespace torch_remote::worker::cuda {
namespace {

constexpr int kThreads = 128;

// The number of labels of a row, returned to all threads. Checks all positions, even after the end of the list.
__device__ i64 count_labels(const MarginArguments& f, const i64* target, i64* count) {
  sync();
  if (thread() == 0) *count = f.length;
  sync();
  for (i64 i = thread(); i < f.length; i += kThreads) {
    const i64 label = target[i];
    if (label >= 0 && label < f.length) continue;
    if (label < -1 || label >= f.length) fail(f.failure, 0, label, f.length);
    __atomic_fetch_min(count, i, __ATOMIC_RELAXED);
  }
  sync();
  return *count;
}

// Stores 1; several threads may mark the same label.
__device__ void mark(u64 to, i64 at, i64 dtype) {
  switch (dtype) {
    case kFloat16:
      return put<u16, true>(to, at, 0x3C00);
    case kBFloat16:
      return put<u16, true>(to, at, 0x3F80);
    case kFloat32:
      return put<float, true>(to, at, 1);
    default:
      return put<double, true>(to, at, 1);
  }
}

}  // namespace

KERNEL(kThreads) margin_class(const MarginArguments f) {
  __shared__ double shared[kThreads];
  for (i64 row = block(); row < f.rows; row += blocks()) {
    const i64 first = row * f.length, label = pointer<const i64>(f.target)[row];
    const bool good = label >= 0 && label < f.length;
    if (!good && thread() == 0) fail(f.failure, 0, label, f.length);
    double sum = 0;
    const double own = good ? load_float(f.in, first + label, f.dtype) : 0;
    for (i64 i = thread(); good && i < f.length; i += kThreads) {
      const double beyond = f.margin - own + load_float(f.in, first + i, f.dtype);
      if (i != label && beyond > 0) sum += f.squares != 0 ? beyond * beyond : beyond;
    }
    sum = sum_of_block<kThreads>(sum, shared) * f.scale;
    if (good && f.weight != 0) sum *= load_float(f.weight, label, f.dtype);
    if (thread() == 0) store_float(f.out, row, f.out_dtype, sum);
  }
}

KERNEL(kThreads) margin_class_backward(const MarginArguments f) {
  __shared__ double shared[kThreads];
  for (i64 row = block(); row < f.rows; row += blocks()) {
    const i64 first = row * f.length, label = pointer<const i64>(f.target)[row];
    const bool good = label >= 0 && label < f.length;
    if (!good && thread() == 0) fail(f.failure, 0, label, f.length);
    double scale = f.scale * load_float(f.grad, f.grad_is_each != 0 ? row : 0, f.dtype), sum = 0;
    if (good && f.weight != 0) scale *= load_float(f.weight, label, f.dtype);
    const double own = good ? load_float(f.in, first + label, f.dtype) : 0;
    for (i64 i = thread(); good && i < f.length; i += kThreads) {
      const double beyond = f.margin - own + load_float(f.in, first + i, f.dtype);
      if (i == label) continue;
      const double slope = beyond > 0 ? (f.squares != 0 ? 2 * beyond : 1.0) : 0.0;
      sum += slope;
      store_float(f.out, first + i, f.dtype, slope * scale);
    }
    sum = sum_of_block<kThreads>(sum, shared);
    if (good && thread() == 0) store_float(f.out, first + label, f.dtype, -sum * scale);
  }
}

KERNEL(kThreads) margin_labels(const MarginArguments f) {
  __shared__ double shared[kThreads];
  __shared__ i64 count;
  for (i64 row = block(); row < f.rows; row += blocks()) {
    const i64 first = row * f.length;
    const auto* const target = pointer<const i64>(f.target) + first;
    for (i64 i = thread(); i < f.length; i += kThreads) store_float(f.is_target, first + i, f.dtype, 0);
    const i64 labels = count_labels(f, target, &count);
    for (i64 i = thread(); i < labels; i += kThreads) mark(f.is_target, first + target[i], f.dtype);
    sync();
    double sum = 0;
    for (i64 i = thread(); i < f.length; i += kThreads) {
      if (load_float(f.is_target, first + i, f.dtype) != 0) continue;
      const double x = load_float(f.in, first + i, f.dtype);
      for (i64 k = 0; k < labels; ++k) {
        const double beyond = f.margin - load_float(f.in, first + target[k], f.dtype) + x;
        if (beyond > 0) sum += beyond;
      }
    }
    sum = sum_of_block<kThreads>(sum, shared) * f.scale;
    if (thread() == 0) store_float(f.out, row, f.out_dtype, sum);
  }
}

// An element's gradient is the signed number of its pairs that violate the margin.
KERNEL(kThreads) margin_labels_backward(const MarginArguments f) {
  __shared__ i64 count;
  for (i64 row = block(); row < f.rows; row += blocks()) {
    const i64 first = row * f.length;
    const auto* const target = pointer<const i64>(f.target) + first;
    const i64 labels = count_labels(f, target, &count);
    const double scale = f.scale * load_float(f.grad, f.grad_is_each != 0 ? row : 0, f.dtype);
    for (i64 i = thread(); i < f.length; i += kThreads) {
      const double x = load_float(f.in, first + i, f.dtype);
      const bool is_target = load_float(f.is_target, first + i, f.dtype) != 0;
      i64 pairs = 0;
      for (i64 k = 0; k < labels; ++k) {
        if (!is_target) {
          pairs += f.margin - load_float(f.in, first + target[k], f.dtype) + x > 0;
        } else if (target[k] == i) {
          for (i64 j = 0; j < f.length; ++j) {
            if (load_float(f.is_target, first + j, f.dtype) != 0) continue;
            pairs -= f.margin - x + load_float(f.in, first + j, f.dtype) > 0;
          }
        }
      }
      store_float(f.out, first + i, f.dtype, static_cast<double>(pairs) * scale);
    }
  }
}

}  // namespace torch_remote::worker::cuda
