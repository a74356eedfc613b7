#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>

#include <vector>

#include "worker/targets/aten/kernels/special.h"
#include "worker/targets/aten/kernels/special_generated.h"

// Batch norm over several processes (torch.nn.SyncBatchNorm): the statistics and gradients of each process, which the
// processes then add. Torch has such kernels only for GPUs; these compute the same. Half types are computed in float32,
// and their statistics are float32. Sums and squares are float64, in which no square of a float32 overflows or
// underflows.
namespace torch_remote::worker::aten {
namespace sync_batch_norm_kernels {
namespace {

using at::Tensor;

Tensor wide(const Tensor& tensor) { return tensor.scalar_type() == at::kDouble ? tensor : tensor.to(at::kFloat); }

// Reshapes `values`, one per channel, to broadcast along dim 1 of `input`; converts them to its dtype.
Tensor spread(const Tensor& values, const Tensor& input) {
  TORCH_CHECK(input.dim() >= 2, "remote: batch norm takes an input of two or more dims, but got sizes ", input.sizes());
  std::vector<int64_t> sizes(static_cast<size_t>(input.dim()), 1);
  sizes[1] = values.numel();
  return values.to(input.scalar_type()).view(sizes);
}

Tensor exact(const Tensor& tensor) { return tensor.to(at::kDouble); }

// Sums over all dims but the channels, in float64.
Tensor channel_sums(const Tensor& tensor) {
  std::vector<int64_t> dims{0};
  for (int64_t d = 2; d < tensor.dim(); ++d) dims.push_back(d);
  return exact(tensor).sum(dims);
}

Tensor tensor(const SpecialCall& call, size_t i) { return call.args[i].toTensor(); }
// Returns an undefined tensor for an argument that is not given.
Tensor optional(const SpecialCall& call, size_t i) {
  return call.args[i].isNone() ? Tensor() : call.args[i].toTensor();
}

void give(const SpecialCall& call, size_t i, const Tensor& value) {
  if (call.results[i].defined()) call.results[i].copy_(value);
}

Tensor inverse_deviation(const Tensor& variance, double eps) { return (variance + eps).rsqrt(); }

}  // namespace

// (input, eps) -> mean, invstd
void stats(const SpecialCall& call) {
  const Tensor input = exact(tensor(call, 0));
  const double count = static_cast<double>(input.numel()) / static_cast<double>(input.size(1));
  const Tensor mean = channel_sums(input) / count;
  give(call, 0, mean);
  give(call, 1,
       inverse_deviation(channel_sums((input - spread(mean, input)).square()) / count, call.args[1].toDouble()));
}

// (input, mean, invstd, running_mean, running_var, momentum, eps, counts) -> mean, invstd. The arguments mean and
// invstd have one row per process.
void gather(const SpecialCall& call) {
  const Tensor means = exact(tensor(call, 1)), invstds = exact(tensor(call, 2));
  const double momentum = call.args[5].toDouble(), eps = call.args[6].toDouble();
  const Tensor weights = tensor(call, 7).to(means.scalar_type()).view({-1, 1});
  const Tensor count = weights.sum();
  const Tensor mean = (means * weights).sum(0) / count;
  const Tensor variances = invstds.square().reciprocal() - eps;
  const Tensor squares = (weights * (variances + (means - mean).square())).sum(0);
  give(call, 0, mean);
  give(call, 1, inverse_deviation(squares / count, eps));
  const auto update = [momentum](const Tensor& running, const Tensor& value) {
    if (running.defined()) running.mul_(1 - momentum).add_(value.to(running.scalar_type()), momentum);
  };
  update(optional(call, 3), mean);
  update(optional(call, 4), squares / (count - 1));
}

// (input, weight, bias, mean, invstd, eps) -> output
void normalize(const SpecialCall& call) {
  const Tensor input = wide(tensor(call, 0)), weight = optional(call, 1), bias = optional(call, 2);
  Tensor output = (input - spread(tensor(call, 3), input)) * spread(tensor(call, 4), input);
  if (weight.defined()) output = output * spread(weight, input);
  if (bias.defined()) output = output + spread(bias, input);
  give(call, 0, output);
}

// (grad, input, mean, invstd, weight, input_g, weight_g, bias_g) -> sum_dy, sum_dy_xmu, grad_weight, grad_bias
void backward_reduce(const SpecialCall& call) {
  const Tensor grad = exact(tensor(call, 0)), input = exact(tensor(call, 1));
  const Tensor sum_dy = channel_sums(grad), sum_dy_xmu = channel_sums(grad * (input - spread(tensor(call, 2), input)));
  give(call, 0, sum_dy);
  give(call, 1, sum_dy_xmu);
  give(call, 2, sum_dy_xmu * exact(tensor(call, 3)));
  give(call, 3, sum_dy);
}

// (grad, input, mean, invstd, weight, sum_dy, sum_dy_xmu, count) -> grad_input
void backward_elements(const SpecialCall& call) {
  const Tensor grad = wide(tensor(call, 0)), input = wide(tensor(call, 1)), weight = optional(call, 4);
  const Tensor invstd = exact(tensor(call, 3)), count = tensor(call, 7).sum().to(at::kDouble);
  const Tensor mean_dy = spread(exact(tensor(call, 5)) / count, input);
  const Tensor slope = spread(exact(tensor(call, 6)) / count * invstd.square(), input);
  Tensor result = (grad - mean_dy - (input - spread(tensor(call, 2), input)) * slope) * spread(invstd, input);
  if (weight.defined()) result = result * spread(weight, input);
  give(call, 0, result);
}

}  // namespace sync_batch_norm_kernels
}  // namespace torch_remote::worker::aten
