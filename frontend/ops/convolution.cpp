#include <ATen/core/Tensor.h>
#include <ATen/ops/convolution.h>
#include <torch/library.h>

namespace torch_remote::frontend {
namespace {

using at::Tensor;

// Graphs of torch.jit.trace call this op in place of aten::convolution. Its flags are CUDA's settings at the time of
// tracing; here a convolution follows the current settings.
Tensor convolution_of_graph(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias,
                            c10::SymIntArrayRef stride, c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation,
                            bool transposed, c10::SymIntArrayRef output_padding, c10::SymInt groups, bool /*benchmark*/,
                            bool /*deterministic*/, bool /*cudnn_enabled*/, bool /*allow_tf32*/) {
  return at::convolution_symint(input, weight, bias, stride, padding, dilation, transposed, output_padding,
                                std::move(groups));
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) { library.impl("_convolution", &convolution_of_graph); }

}  // namespace
}  // namespace torch_remote::frontend
