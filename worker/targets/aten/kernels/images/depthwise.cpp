#include "worker/targets/aten/kernels/images/depthwise.h"

#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sum.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <optional>

#include "ir/ops/op_table_generated.h"
#include "worker/targets/aten/kernels/parallel.h"
#include "worker/targets/cpu/loops/host.h"

namespace torch_remote::worker::aten {
namespace {

using at::Tensor;

// Number of multiplications that is worth a thread.
constexpr int64_t kPlanesGrain = 1 << 17;
// From this number of kernel elements on, torch's kernel gradients are slow also for strides above one and for
// channels-last images.
constexpr int64_t kLargeKernel = 16;
// A float32 sum has at most this many terms; such sums are added in float64.
constexpr int64_t kMostAdded = 1024;

// The arguments that both ops have after their tensors.
struct Parameters {
  std::vector<int64_t> stride, padding, dilation;
  bool transposed;
  int64_t groups;

  Parameters(std::span<const c10::IValue> arguments, size_t first)
      : stride(arguments[first].toIntVector()),
        padding(arguments[first + 1].toIntVector()),
        dilation(arguments[first + 2].toIntVector()),
        transposed(arguments[first + 3].toBool()),
        groups(arguments[first + 5].toInt()) {}

  // A single number applies to both dims.
  static std::optional<int64_t> of(const std::vector<int64_t>& numbers, size_t dim, size_t dims) {
    if (numbers.size() == dims) return numbers[dim];
    return numbers.size() == 1 ? std::optional(numbers[0]) : std::nullopt;
  }
};

bool is_float(const Tensor& tensor, int64_t dims) {
  return tensor.defined() && tensor.dim() == dims && tensor.scalar_type() == at::kFloat;
}

// The call for one or two spatial dims; empty if the loops do not support it. The loops themselves need contiguous
// (NCHW) tensors.
std::optional<DepthwiseCall> call_of(const Tensor& input, const Tensor& kernel, const Parameters& parameters) {
  const int64_t dims = input.dim();
  if ((dims != 3 && dims != 4) || !is_float(input, dims) || !is_float(kernel, dims) || !kernel.is_contiguous() ||
      parameters.transposed || input.numel() == 0 || kernel.numel() == 0) {
    return std::nullopt;
  }
  const int64_t channels = input.size(1);
  if (parameters.groups != channels || kernel.size(0) != channels || kernel.size(1) != 1) return std::nullopt;
  DepthwiseCall call;
  for (int64_t d = 2; d < dims; ++d) {
    const auto i = static_cast<size_t>(d - 2), count = static_cast<size_t>(dims - 2);
    const auto stride = Parameters::of(parameters.stride, i, count),
               padding = Parameters::of(parameters.padding, i, count),
               dilation = Parameters::of(parameters.dilation, i, count);
    if (!stride || !padding || !dilation || *stride < 1 || *padding < 0 || *dilation < 1) return std::nullopt;
    // With large dilations or wide kernels, most of a padded line would be zeros.
    if (*stride > 4 || *padding > kMaxDepthwiseKernel || *dilation > kMaxDepthwiseKernel / kernel.size(d)) {
      return std::nullopt;
    }
    const int64_t reach = input.size(d) + 2 * *padding - *dilation * (kernel.size(d) - 1) - 1;
    if (reach < 0) return std::nullopt;
    DepthwiseDim& dim = d + 1 == dims ? call.width : call.height;
    dim = {input.size(d), reach / *stride + 1, kernel.size(d), *stride, *padding, *dilation};
  }
  return call;
}

std::vector<int64_t> sizes_of_result(const Tensor& input, const DepthwiseCall& call) {
  std::vector<int64_t> sizes = input.sizes().vec();
  sizes.back() = call.width.output;
  if (sizes.size() == 4) sizes[2] = call.height.output;
  return sizes;
}

bool is_finite(const Tensor& tensor) {
  const float* const data = tensor.const_data_ptr<float>();
  return std::all_of(data, data + tensor.numel(), [](float x) { return std::isfinite(x); });
}

bool has_steps(const DepthwiseCall& call) { return call.height.stride != 1 || call.width.stride != 1; }

int64_t work_of(const DepthwiseCall& call) {
  return call.height.output * call.width.output * call.height.kernel * call.width.kernel;
}

bool is_less(const DepthwiseCall& call, const Tensor& input, int64_t least) {
  return work_of(call) * input.size(0) * input.size(1) < least;
}

// Convolves each plane with its channel's kernel. `bias` may be null.
Tensor convolve(const DepthwiseLoops& loops, const DepthwiseCall& call, const Tensor& input, const float* kernels,
                const float* bias, c10::IntArrayRef sizes) {
  Tensor result = at::empty(sizes, input.options());
  const float* const from = input.const_data_ptr<float>();
  float* const to = result.mutable_data_ptr<float>();
  const int64_t channels = input.size(1), in = call.height.input * call.width.input,
                out = call.height.output * call.width.output, size = call.height.kernel * call.width.kernel;
  run_parallel(input.size(0) * channels, std::max<int64_t>(1, kPlanesGrain / work_of(call)),
               [&](int64_t begin, int64_t end) {
                 std::vector<float> scratch(static_cast<size_t>(loops.scratch(call)));
                 for (int64_t i = begin; i < end; ++i) {
                   const int64_t c = i % channels;
                   loops.convolve(call, from + i * in, kernels + c * size, bias != nullptr ? bias[c] : 0.0f,
                                  to + i * out, scratch.data());
                 }
               });
  return result;
}

std::vector<Tensor> forward(const DepthwiseLoops& loops, std::span<const c10::IValue> arguments, int64_t least) {
  const Tensor &input = arguments[0].toTensor(), &kernel = arguments[1].toTensor();
  const Tensor bias = arguments[2].isTensor() ? arguments[2].toTensor() : Tensor();
  const auto call = call_of(input, kernel, Parameters(arguments, 3));
  const bool takes =
      call && (!bias.defined() || (is_float(bias, 1) && bias.is_contiguous() && bias.size(0) == input.size(1)));
  if (!takes || is_less(*call, input, least) || !input.is_contiguous() || has_steps(*call) || !is_finite(kernel))
    return {};
  return {convolve(loops, *call, input, kernel.const_data_ptr<float>(),
                   bias.defined() ? bias.const_data_ptr<float>() : nullptr, sizes_of_result(input, *call))};
}

// A convolution of the results' gradient with the flipped kernels. Returns an undefined tensor if that cannot express
// the gradient.
Tensor input_gradient(const DepthwiseLoops& loops, const DepthwiseCall& call, const Tensor& grad, const Tensor& kernel,
                      c10::IntArrayRef sizes) {
  const auto turned = [](const DepthwiseDim& dim) {
    return DepthwiseDim{dim.output,  dim.input, dim.kernel, 1, dim.dilation * (dim.kernel - 1) - dim.padding,
                        dim.dilation};
  };
  const DepthwiseCall back{turned(call.height), turned(call.width)};
  if (back.height.padding < 0 || back.width.padding < 0 || !is_finite(kernel)) return {};
  const int64_t size = call.height.kernel * call.width.kernel, channels = kernel.size(0);
  const float* const from = kernel.const_data_ptr<float>();
  std::vector<float> kernels(static_cast<size_t>(channels * size));
  for (int64_t c = 0; c < channels; ++c) {
    std::reverse_copy(from + c * size, from + (c + 1) * size, kernels.begin() + c * size);
  }
  return convolve(loops, back, grad, kernels.data(), nullptr, sizes);
}

// Returns an undefined tensor if `grad` has an element that is not finite.
Tensor kernel_gradient(const DepthwiseLoops& loops, const DepthwiseCall& call, const Tensor& grad, const Tensor& input,
                       c10::IntArrayRef sizes) {
  Tensor result = at::empty(sizes, input.options());
  const float *const inputs = input.const_data_ptr<float>(), *const grads = grad.const_data_ptr<float>();
  float* const to = result.mutable_data_ptr<float>();
  const int64_t images = input.size(0), channels = input.size(1), in = call.height.input * call.width.input,
                out = call.height.output * call.width.output, size = call.height.kernel * call.width.kernel;
  // At least eight elements of a row are added in parallel, into separate sums.
  const int64_t added = call.height.output * ((call.width.output + 7) / 8),
                fold_after = std::max<int64_t>(1, kMostAdded / added);
  std::atomic<bool> finite{true};
  const int64_t grain = std::max<int64_t>(1, kPlanesGrain / (work_of(call) * images));
  run_parallel(channels, grain, [&](int64_t begin, int64_t end) {
    std::vector<float> scratch(static_cast<size_t>(loops.scratch(call))), sums(static_cast<size_t>(loops.sums(call)));
    std::vector<double> gradient(static_cast<size_t>(size));
    for (int64_t c = begin; c < end && finite.load(std::memory_order_relaxed); ++c) {
      std::ranges::fill(gradient, 0.0);
      for (int64_t n = 0; n < images; ++n) {
        const int64_t i = n * channels + c;
        if (!loops.add(call, inputs + i * in, grads + i * out, sums.data(), scratch.data())) {
          finite.store(false, std::memory_order_relaxed);
          return;
        }
        if ((n + 1) % fold_after == 0 || n + 1 == images) loops.fold(call, sums.data(), gradient.data());
      }
      std::ranges::transform(gradient, to + c * size, [](double sum) { return static_cast<float>(sum); });
    }
  });
  return finite ? result : Tensor();
}

// (grad_output, input, weight, bias_sizes, stride, padding, dilation, transposed, output_padding, groups, output_mask)
std::vector<Tensor> backward(const DepthwiseLoops& loops, std::span<const c10::IValue> arguments, int64_t least) {
  const Tensor &grad = arguments[0].toTensor(), &input = arguments[1].toTensor(), &kernel = arguments[2].toTensor();
  const auto call = call_of(input, kernel, Parameters(arguments, 4));
  if (!call || is_less(*call, input, least) || !is_float(grad, input.dim()) ||
      grad.sizes() != sizes_of_result(input, *call))
    return {};
  const std::vector<bool> wanted = arguments[10].toBoolList().vec();
  const bool plain = input.is_contiguous() && !has_steps(*call);
  if (wanted.size() != 3 || (!plain && call->height.kernel * call->width.kernel < kLargeKernel)) return {};
  // A gradient that comes from a norm over channels may be channels last while the image is not.
  const Tensor plain_grad = grad.contiguous();
  std::vector<Tensor> results(3);
  if (wanted[1]) {
    results[1] = kernel_gradient(loops, *call, plain_grad, input.contiguous(), kernel.sizes());
    if (!results[1].defined()) return {};
  }
  if (wanted[0]) {
    if (plain) results[0] = input_gradient(loops, *call, plain_grad, kernel, input.sizes());
    if (!results[0].defined()) {
      results[0] = std::get<0>(at::convolution_backward(
          grad, input, kernel, at::OptionalIntArrayRef(), arguments[4].toIntVector(), arguments[5].toIntVector(),
          arguments[6].toIntVector(), false, arguments[8].toIntVector(), input.size(1), {true, false, false}));
    }
  }
  if (wanted[2]) {
    results[2] = input.dim() == 4 ? grad.sum(c10::IntArrayRef{0, 2, 3}) : grad.sum(c10::IntArrayRef{0, 2});
  }
  return results;
}

}  // namespace

const DepthwiseLoops* depthwise_loops() {
  static const auto all = loops_of_host(kDepthwiseLevels);
  return all.empty() ? nullptr : all[0].loops;
}

bool may_use_depthwise_loops(const ir::Node& node) {
  const bool back = node.opcode == ir::ops::aten_convolution_backward;
  if (!back && node.opcode != ir::ops::aten_convolution) return false;
  return std::all_of(node.args.begin(), node.args.begin() + (back ? 3 : 2),
                     [](const ir::Arg& arg) { return arg.tag == ir::ArgTag::kView; });
}

std::vector<Tensor> depthwise(const DepthwiseLoops& loops, const ir::Node& node, std::span<const c10::IValue> arguments,
                              int64_t least) {
  const bool back = node.opcode == ir::ops::aten_convolution_backward;
  return back ? backward(loops, arguments, least) : forward(loops, arguments, least);
}

}  // namespace torch_remote::worker::aten
