#include <ATen/core/Tensor.h>
#include <ATen/ops/_fused_moving_avg_obs_fq_helper.h>
#include <torch/library.h>

#include <limits>

// Quantization-aware training (torch.ao.quantization). The fused op that observes and rounds resizes its per-channel
// statistics when it first sees the number of channels. Buffers on a worker cannot be resized, so the client resizes
// here.
namespace torch_remote::frontend {
namespace {

using at::Tensor;

Tensor moving_average_fake_quantize(const Tensor& self, const Tensor& observer_on, const Tensor& fake_quant_on,
                                    Tensor& running_min, Tensor& running_max, Tensor& scale, Tensor& zero_point,
                                    double averaging_const, int64_t quant_min, int64_t quant_max, int64_t ch_axis,
                                    bool per_row_fake_quant, bool symmetric_quant) {
  if (self.numel() == 0) return self.clone();
  if (per_row_fake_quant) {
    TORCH_CHECK(ch_axis >= 0 && ch_axis < self.dim(),
                "Error in fused_moving_avg_obs_fake_quant_cpu: ch_axis must be < "
                "self.dim()");
    const int64_t channels = self.size(ch_axis);
    if (running_min.numel() == 0) {
      constexpr double kInfinity = std::numeric_limits<double>::infinity();
      running_min.resize_({channels}).fill_(kInfinity);
      running_max.resize_({channels}).fill_(-kInfinity);
    }
    scale.resize_({channels});
    zero_point.resize_({channels});
  }
  return std::get<0>(at::_fused_moving_avg_obs_fq_helper(self, observer_on, fake_quant_on, running_min, running_max,
                                                         scale, zero_point, averaging_const, quant_min, quant_max,
                                                         ch_axis, per_row_fake_quant, symmetric_quant));
}

TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, library) {
  library.impl("fused_moving_avg_obs_fake_quant", &moving_average_fake_quantize);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("fused_moving_avg_obs_fake_quant", &moving_average_fake_quantize);
}

}  // namespace
}  // namespace torch_remote::frontend
