// CTC loss. One block per sequence iterates over time; its threads share the states. Computed in log space, as torch's
// CPU kernels do.

#include "worker/targets/cuda/kernels/ctc_arguments.h"
#include "worker/targets/cuda/kernels/device.h"

namespace torch_remote::worker::cuda {
namespace {

constexpr int kThreads = 256;
constexpr double kNever = -__builtin_inf();

// log(e^a + e^b + e^c)
__device__ double log_sum(double a, double b, double c) {
  double most = a > b ? a : b;
  if (c > most) most = c;
  if (most == kNever) return kNever;
  return log(exp(a - most) + exp(b - most) + exp(c - most)) + most;
}

class Sequence {
 public:
  __device__ Sequence(const CtcArguments& f, i64 batch) : f_(f), batch_(batch) {
    const auto* const lengths = pointer<const i64>(f.target_lengths);
    time = pointer<const i64>(f.score_lengths)[batch];
    labels_ = lengths[batch];
    first_ = batch * f.target_stride;
    bool good = true;
    if (f.target_stride == 0) {
      for (i64 b = 0; b < batch && good; ++b) {
        good = lengths[b] >= 0 && lengths[b] <= f.targets_count - first_;
        if (good) first_ += lengths[b];
      }
    }
    const i64 most = f.target_stride == 0 ? f.targets_count - first_ : f.target_stride;
    if (!good || labels_ < 0 || labels_ > most || labels_ > (f.states - 1) / 2) {
      if (thread() == 0) fail(f.failure, 0, labels_, most);
      labels_ = time = 0;
    }
    if (time < 0 || time > f.time) {
      if (thread() == 0) fail(f.failure, 0, time, f.time);
      time = 0;
    }
    states = 2 * labels_ + 1;
  }

  __device__ i64 label(i64 state) const {
    if ((state & 1) == 0) return f_.blank;
    const i64 given = pointer<const i64>(f_.targets)[first_ + state / 2];
    if (given >= 0 && given < f_.classes) return given;
    fail(f_.failure, 0, given, f_.classes);
    return f_.blank;
  }
  __device__ double score(i64 t, i64 label) const {
    return load_float(f_.scores, t * f_.score_strides[0] + batch_ * f_.score_strides[1] + label * f_.score_strides[2],
                      f_.dtype);
  }
  __device__ i64 position(i64 t, i64 state) const { return (batch_ * f_.time + t) * f_.states + state; }
  __device__ double alpha(i64 t, i64 state) const { return load_float(f_.alpha, position(t, state), f_.dtype); }

  i64 time, states;

 private:
  const CtcArguments& f_;
  const i64 batch_;
  i64 labels_, first_;
};

}  // namespace

KERNEL(kThreads) ctc_forward(const CtcArguments f) {
  const Sequence of(f, block());
  for (i64 t = 0; t < of.time; ++t) {
    for (i64 s = thread(); s < of.states; s += kThreads) {
      const i64 label = of.label(s);
      double before = s < 2 ? 0 : kNever;  // At time 0: one of the first two states.
      if (t != 0) {
        const bool skips = s > 1 && of.label(s - 2) != label;
        before = log_sum(of.alpha(t - 1, s), s > 0 ? of.alpha(t - 1, s - 1) : kNever,
                         skips ? of.alpha(t - 1, s - 2) : kNever);
      }
      store_float(f.alpha, of.position(t, s), f.dtype, before + of.score(t, label));
    }
    sync();
  }
  if (thread() != 0) return;
  double loss = 0;
  if (of.time == 0) {
    loss = of.states == 1 ? 0 : __builtin_inf();
  } else {
    const i64 t = of.time - 1;
    loss = -log_sum(of.alpha(t, of.states - 1), of.states > 1 ? of.alpha(t, of.states - 2) : kNever, kNever);
  }
  store_float(f.loss, block(), f.dtype, loss);
}

KERNEL(kThreads) ctc_backward(const CtcArguments f) {
  const i64 batch = block();
  const Sequence of(f, batch);
  auto* const beta = pointer<double>(f.beta) + batch * 2 * f.states;
  const double loss = load_float(f.loss, batch, f.dtype);
  const double grad = load_float(f.grad, batch * f.grad_stride, f.dtype);
  const bool nothing = f.zero_infinity != 0 && loss == __builtin_inf();
  for (i64 t = f.time - 1; t >= 0; --t) {
    const bool counts = t < of.time && !nothing;
    double* const now = beta + (t & 1) * f.states;
    const double* const later = beta + (1 - (t & 1)) * f.states;
    for (i64 s = thread(); counts && s < of.states; s += kThreads) {
      const i64 label = of.label(s);
      double after = s + 2 >= of.states ? 0 : kNever;  // At the last time: one of the last two states.
      if (t != of.time - 1) {
        const bool skips = s + 2 < of.states && of.label(s + 2) != label;
        after = log_sum(later[s], s + 1 < of.states ? later[s + 1] : kNever, skips ? later[s + 2] : kNever);
      }
      now[s] = after + of.score(t, label);
    }
    sync();
    for (i64 c = thread(); c < f.classes; c += kThreads) {
      double made = 0;
      if (counts) {
        double all = kNever;
        for (i64 s = 0; s < of.states; ++s) {
          if (of.label(s) == c) all = log_sum(all, of.alpha(t, s) + now[s], kNever);
        }
        const double score = of.score(t, c);
        made = (exp(score) - exp(all + loss - score)) * grad;
      }
      store_float(f.out, (t * f.batch + batch) * f.classes + c, f.dtype, made);
    }
    sync();
  }
}

}  // namespace torch_remote::worker::cuda
