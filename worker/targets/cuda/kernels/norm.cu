// Gradients of group norm, computed from sums of each channel of each image; gradients of layer norm; batch norm. Sums
// are f64, in a fixed order.

#include "worker/targets/cuda/kernels/device.h"
#include "worker/targets/cuda/kernels/norm_arguments.h"

namespace torch_remote::worker::cuda {
namespace {

constexpr int kThreads = 256;

struct Sums {
  double products, grads;
};

// The sums over all threads, returned to all threads.
__device__ Sums sum_of_block(Sums own) {
  __shared__ Sums shared[kThreads];
  sync();
  shared[thread()] = own;
  for (int half = kThreads / 2; half > 0; half /= 2) {
    sync();
    if (thread() < half) {
      shared[thread()].products += shared[thread() + half].products;
      shared[thread()].grads += shared[thread() + half].grads;
    }
  }
  sync();
  return shared[0];
}

__device__ double weight_of(const GroupNormArguments& norm, i64 channel) {
  return norm.weight == 0 ? 1.0 : load_float(norm.weight, channel, norm.weight_dtype);
}

}  // namespace

// One block per channel of an image.
KERNEL(kThreads) group_norm_sums(const GroupNormArguments norm) {
  const i64 rows = norm.batch * norm.groups * norm.channels;
  for (i64 row = block(); row < rows; row += blocks()) {
    Sums own = {0, 0};
    for (i64 i = thread(); i < norm.space; i += kThreads) {
      const double grad = load_float(norm.grad, row * norm.space + i, norm.dtype);
      own.products += grad * load_float(norm.input, row * norm.space + i, norm.dtype);
      own.grads += grad;
    }
    const Sums all = sum_of_block(own);
    if (thread() == 0) pointer<Sums>(norm.sums)[row] = all;
  }
}

// One block per group of an image.
KERNEL(kThreads) group_norm_input(const GroupNormArguments norm) {
  const auto* const sums = pointer<const Sums>(norm.sums);
  for (i64 group = block(); group < norm.batch * norm.groups; group += blocks()) {
    const i64 first = (group % norm.groups) * norm.channels, points = norm.channels * norm.space;
    Sums own = {0, 0};
    for (i64 c = thread(); c < norm.channels; c += kThreads) {
      const double weight = weight_of(norm, first + c);
      own.products += weight * sums[group * norm.channels + c].products;
      own.grads += weight * sums[group * norm.channels + c].grads;
    }
    const Sums all = sum_of_block(own);
    const double mean = load_float(norm.mean, group, norm.stat_dtype);
    const double rstd = load_float(norm.rstd, group, norm.stat_dtype);
    const double part = 1.0 / static_cast<double>(points);
    const double slope = (all.grads * mean - all.products) * rstd * rstd * rstd * part;
    const double shift = -slope * mean - all.grads * rstd * part;
    for (i64 i = thread(); i < points; i += kThreads) {
      const i64 at = group * points + i;
      const double grad = load_float(norm.grad, at, norm.dtype), x = load_float(norm.input, at, norm.dtype);
      const double weight = weight_of(norm, first + divide(i, norm.space));
      store_float(norm.grad_input, at, norm.dtype, grad * rstd * weight + slope * x + shift);
    }
  }
}

// One thread per channel.
KERNEL(kThreads) group_norm_weights(const GroupNormArguments norm) {
  const auto* const sums = pointer<const Sums>(norm.sums);
  const i64 all = norm.groups * norm.channels;
  for (i64 channel = first_item(); channel < all; channel += all_threads()) {
    double weight = 0, bias = 0;
    for (i64 image = 0; image < norm.batch; ++image) {
      const Sums sum = sums[image * all + channel];
      const i64 group = image * norm.groups + divide(channel, norm.channels);
      const double mean = load_float(norm.mean, group, norm.stat_dtype);
      weight += (sum.products - sum.grads * mean) * load_float(norm.rstd, group, norm.stat_dtype);
      bias += sum.grads;
    }
    if (norm.grad_weight != 0) store_float(norm.grad_weight, channel, norm.grad_weight_dtype, weight);
    if (norm.grad_bias != 0) store_float(norm.grad_bias, channel, norm.grad_weight_dtype, bias);
  }
}

// -- Layer norm

namespace {

__device__ double normal_of(const LayerNormGradientArguments& norm, i64 row, i64 at) {
  const double mean = load_float(norm.mean, row, norm.stat_dtype), rstd = load_float(norm.rstd, row, norm.stat_dtype);
  return (load_float(norm.input, at, norm.dtype) - mean) * rstd;
}

__device__ double scaled_grad(const LayerNormGradientArguments& norm, i64 at, i64 column) {
  const double weight = norm.weight == 0 ? 1.0 : load_float(norm.weight, column, norm.weight_dtype);
  return load_float(norm.grad, at, norm.dtype) * weight;
}

}  // namespace

// One block per row.
KERNEL(kThreads) layer_norm_input(const LayerNormGradientArguments norm) {
  const double part = 1.0 / static_cast<double>(norm.length);
  for (i64 row = block(); row < norm.rows; row += blocks()) {
    Sums own = {0, 0};
    for (i64 i = thread(); i < norm.length; i += kThreads) {
      const double grad = scaled_grad(norm, row * norm.length + i, i);
      own.products += grad * normal_of(norm, row, row * norm.length + i);
      own.grads += grad;
    }
    const Sums all = sum_of_block(own);
    const double rstd = load_float(norm.rstd, row, norm.stat_dtype);
    for (i64 i = thread(); i < norm.length; i += kThreads) {
      const i64 at = row * norm.length + i;
      const double level = (all.grads + normal_of(norm, row, at) * all.products) * part;
      store_float(norm.grad_input, at, norm.dtype, (scaled_grad(norm, at, i) - level) * rstd);
    }
  }
}

// A block has one column per thread, and a part of the rows.
KERNEL(kThreads) layer_norm_parts(const LayerNormGradientArguments norm) {
  const i64 across = divide(norm.length + kThreads - 1, kThreads);
  for (i64 piece = block(); piece < across * norm.parts; piece += blocks()) {
    const i64 part = divide(piece, across), column = (piece - part * across) * kThreads + thread();
    if (column >= norm.length) continue;
    Sums own = {0, 0};
    for (i64 row = part; row < norm.rows; row += norm.parts) {
      const double grad = load_float(norm.grad, row * norm.length + column, norm.dtype);
      own.products += grad * normal_of(norm, row, row * norm.length + column);
      own.grads += grad;
    }
    pointer<Sums>(norm.sums)[part * norm.length + column] = own;
  }
}

// One thread per column.
KERNEL(kThreads) layer_norm_weights(const LayerNormGradientArguments norm) {
  const auto* const sums = pointer<const Sums>(norm.sums);
  for (i64 column = first_item(); column < norm.length; column += all_threads()) {
    Sums all = {0, 0};
    for (i64 part = 0; part < norm.parts; ++part) {
      all.products += sums[part * norm.length + column].products;
      all.grads += sums[part * norm.length + column].grads;
    }
    if (norm.grad_weight != 0) store_float(norm.grad_weight, column, norm.weight_dtype, all.products);
    if (norm.grad_bias != 0) store_float(norm.grad_bias, column, norm.weight_dtype, all.grads);
  }
}

// -- Batch norm: one block per channel; sums have a fixed order

namespace {

// The sum over all threads, returned to all threads.
__device__ double sum_of_block(double mine) {
  __shared__ double sums[256];
  sums[thread()] = mine;
  for (int half = 128; half > 0; half /= 2) {
    sync();
    if (thread() < half) sums[thread()] += sums[thread() + half];
  }
  sync();
  const double all = sums[0];
  sync();
  return all;
}

template <typename F>
__device__ void for_channel(const BatchNormArguments& f, i64 channel, F&& act) {
  for (i64 i = thread(); i < f.batch * f.space; i += 256) {
    const i64 image = divide(i, f.space);
    act((image * f.channels + channel) * f.space + (i - image * f.space));
  }
}

__device__ double given(u64 from, i64 at, i64 dtype, double otherwise) {
  return from != 0 ? load_float(from, at, dtype) : otherwise;
}

}  // namespace

KERNEL(256) batch_norm(const BatchNormArguments f) {
  const auto count = static_cast<double>(f.batch * f.space);
  for (i64 channel = block(); channel < f.channels; channel += blocks()) {
    double mean = 0, rstd = 0;
    if (f.trains != 0) {
      double sum = 0, squares = 0;
      for_channel(f, channel, [&](i64 at) { sum += load_float(f.input, at, f.dtype); });
      mean = sum_of_block(sum) / count;
      for_channel(f, channel, [&](i64 at) {
        const double x = load_float(f.input, at, f.dtype) - mean;
        squares += x * x;
      });
      squares = sum_of_block(squares);
      rstd = 1 / __builtin_sqrt(squares / count + f.epsilon);
      if (thread() == 0) {
        const auto run = [&](u64 running, double now) {
          if (running == 0) return;
          const double was = load_float(running, channel, f.running_dtype);
          store_float(running, channel, f.running_dtype, (1 - f.momentum) * was + f.momentum * now);
        };
        run(f.running_mean, mean);
        run(f.running_var, squares / (count - 1));
        if (f.mean != 0) store_float(f.mean, channel, f.stat_dtype, mean);
        if (f.rstd != 0) store_float(f.rstd, channel, f.stat_dtype, rstd);
      }
    } else {
      mean = load_float(f.running_mean, channel, f.running_dtype);
      rstd = 1 / __builtin_sqrt(load_float(f.running_var, channel, f.running_dtype) + f.epsilon);
    }
    const double scale = rstd * given(f.weight, channel, f.weight_dtype, 1);
    const double shift = given(f.bias, channel, f.weight_dtype, 0) - mean * scale;
    for_channel(f, channel,
                [&](i64 at) { store_float(f.out, at, f.dtype, load_float(f.input, at, f.dtype) * scale + shift); });
  }
}

KERNEL(256) batch_norm_backward(const BatchNormArguments f) {
  const auto count = static_cast<double>(f.batch * f.space);
  for (i64 channel = block(); channel < f.channels; channel += blocks()) {
    double mean = 0, rstd = 0;
    if (f.trains != 0) {
      mean = load_float(f.mean, channel, f.stat_dtype);
      rstd = load_float(f.rstd, channel, f.stat_dtype);
    } else {
      mean = load_float(f.running_mean, channel, f.running_dtype);
      rstd = 1 / __builtin_sqrt(load_float(f.running_var, channel, f.running_dtype) + f.epsilon);
    }
    double sum = 0, along = 0;
    for_channel(f, channel, [&](i64 at) {
      const double grad = load_float(f.grad, at, f.dtype);
      sum += grad;
      along += grad * (load_float(f.input, at, f.dtype) - mean);
    });
    sum = sum_of_block(sum);
    along = sum_of_block(along);
    if (thread() == 0) {
      if (f.grad_weight != 0) store_float(f.grad_weight, channel, f.weight_dtype, along * rstd);
      if (f.grad_bias != 0) store_float(f.grad_bias, channel, f.weight_dtype, sum);
    }
    if (f.grad_input == 0) continue;
    const double scale = rstd * given(f.weight, channel, f.weight_dtype, 1);
    for_channel(f, channel, [&](i64 at) {
      double grad = load_float(f.grad, at, f.dtype);
      if (f.trains != 0) {
        grad -= sum / count + (load_float(f.input, at, f.dtype) - mean) * rstd * rstd * along / count;
      }
      store_float(f.grad_input, at, f.dtype, grad * scale);
    });
  }
}

}  // namespace torch_remote::worker::cuda
