// Checks of layers: convolution, embedding, norms, pooling, losses.
#include <ATen/native/ConvUtils.h>
#include <ATen/native/GridSamplerUtils.h>
#include <ATen/native/LossMulti.h>
#include <ATen/native/PixelShuffle.h>
#include <ATen/native/cpu/mixed_data_type.h>
#include <ATen/native/im2col_shape_check.h>
#include <ATen/native/layer_norm.h>

#include "frontend/shapes/call_checks_generated.h"
#include "frontend/shapes/infer.h"
#include "frontend/shapes/shape_rules.h"

namespace torch_remote::frontend::checks {
namespace {

using c10::IValue;
using c10::ScalarType;

std::optional<at::Tensor> optional_at(const IValue* args, int i) {
  return given(args[i]) ? std::optional(args[i].toTensor()) : std::nullopt;
}

at::Tensor tensor_or_none(const IValue* args, int i) { return given(args[i]) ? args[i].toTensor() : at::Tensor(); }

}  // namespace

// convolution(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups)
void convolution(const OpEntry&, const IValue* args) {
  const at::Tensor &input = tensor_at(args, 0), &weight = tensor_at(args, 1);
  std::vector<c10::SymInt> lists[4];
  for (int i = 0; i < 4; ++i) {
    for (const int64_t item : int_list(args[i == 3 ? 7 : 3 + i])) lists[i].emplace_back(item);
  }
  TORCH_CHECK(weight.dim() > 2, "weight should have at least three dimensions");
  TORCH_CHECK(args[8].toInt() > 0, "non-positive groups is not supported");
  const auto bias = given(args[2]) ? std::optional(meta_like(tensor_at(args, 2))) : std::nullopt;
  // torch checks the call before it chooses a backend; the chosen backend is ignored here.
  at::native::select_conv_backend(meta_like(input), meta_like(weight), bias, lists[0], lists[1], lists[2],
                                  args[6].toBool(), lists[3], args[8].toInt(), std::nullopt);
  const c10::DimVector dilation = int_list(args[5]);
  for (const int64_t step : dilation) {
    TORCH_CHECK(step > 0, "dilation should be greater than zero, but got ", c10::IntArrayRef(dilation));
  }
  check_same_dtype(input, weight);
}

// embedding(weight, indices, ...)
void embedding(const OpEntry&, const IValue* args) {
  TORCH_CHECK(tensor_at(args, 0).dim() == 2, "'weight' must be 2-D");
  const ScalarType dtype = tensor_at(args, 1).scalar_type();
  TORCH_CHECK(dtype == ScalarType::Long || dtype == ScalarType::Int,
              "Expected tensor for argument #1 'indices' to have one of the following scalar types: Long, Int; but got "
              "torch.remote.",
              dtype, "Tensor instead (while checking arguments for embedding)");
}

// native_layer_norm(input, normalized_shape, weight, bias, eps)
void layer_norm(const OpEntry&, const IValue* args) {
  at::native::_check_layer_norm_inputs(tensor_at(args, 0), int_list(args[1]), tensor_or_none(args, 2),
                                       tensor_or_none(args, 3));
}

// native_group_norm(input, weight, bias, ...)
void group_norm(const OpEntry&, const IValue* args) {
  const at::Tensor weight = tensor_or_none(args, 1), bias = tensor_or_none(args, 2);
  if (at::native::is_mixed_type(tensor_at(args, 0), weight, bias)) {
    at::native::check_mixed_data_type(tensor_at(args, 0), weight, bias);
  }
}

void adaptive_average(const OpEntry& op, const IValue* args) {
  const at::Tensor& self = tensor_at(args, 0);
  const bool flat = op.desc->name.find("2d") != op.desc->name.npos;
  const int64_t most = flat ? 4 : 5;
  TORCH_CHECK(self.dim() == most - 1 || self.dim() == most, flat ? "adaptive_avg_pool2d" : "adaptive_avg_pool3d",
              "(): Expected ", most - 1, "D or ", most, "D tensor, but got ", self.sizes());
}

void pixel_shuffle(const OpEntry&, const IValue* args) {
  at::native::check_pixel_shuffle_shapes(tensor_at(args, 0), args[1].toInt());
}

void pixel_unshuffle(const OpEntry&, const IValue* args) {
  at::native::check_pixel_unshuffle_shapes(tensor_at(args, 0), args[1].toInt());
}

// im2col(self, kernel_size, dilation, padding, stride)
void im2col(const OpEntry&, const IValue* args) {
  const auto kernel = int_list(args[1]), dilation = int_list(args[2]), padding = int_list(args[3]),
             stride = int_list(args[4]);
  if (kernel.size() != 2 || dilation.size() != 2 || padding.size() != 2 || stride.size() != 2) return;
  at::native::im2col_shape_check(tensor_at(args, 0), at::Tensor(), kernel[0], kernel[1], dilation[0], dilation[1],
                                 padding[0], padding[1], stride[0], stride[1]);
}

// col2im(self, output_size, kernel_size, dilation, padding, stride)
void col2im(const OpEntry&, const IValue* args) {
  const auto size = int_list(args[1]), kernel = int_list(args[2]), dilation = int_list(args[3]),
             padding = int_list(args[4]), stride = int_list(args[5]);
  for (const auto* list : {&size, &kernel, &dilation, &padding, &stride}) {
    if (list->size() != 2) return;
  }
  at::native::col2im_shape_check(tensor_at(args, 0), at::Tensor(), size[0], size[1], kernel[0], kernel[1], dilation[0],
                                 dilation[1], padding[0], padding[1], stride[0], stride[1]);
}

// grid_sampler_2d(input, grid, interpolation_mode, padding_mode, align_corners), grid_sampler_3d
void grid_sampler(const OpEntry& op, const IValue* args) {
  const at::Tensor &input = tensor_at(args, 0), &grid = tensor_at(args, 1);
  at::native::check_grid_sampler_common(input, grid);
  if (op.desc->name.starts_with("aten::grid_sampler_2d")) {
    at::native::check_grid_sampler_2d(input, grid);
  } else {
    at::native::check_grid_sampler_3d(input, grid, args[2].toInt());
  }
  check_same_dtype(input, grid);
}

// gelu(self, approximate), gelu_backward(grad, self, approximate)
void gelu(const OpEntry& op, const IValue* args) {
  const std::string_view name = args[op.desc->name.starts_with("aten::gelu_backward") ? 2 : 1].toStringView();
  TORCH_CHECK(name == "none" || name == "tanh", "approximate argument must be either none or tanh.");
}

// celu(self, alpha)
void celu(const OpEntry&, const IValue* args) {
  TORCH_CHECK(args[1].toScalar().to<double>() != 0, "ZeroDivisionError: alpha cannot be 0 for CELU");
}

// _softmax(self, dim, half_to_float), _log_softmax
void softmax(const OpEntry&, const IValue* args) {
  TORCH_CHECK(!args[2].toBool(), "softmax with half to float conversion is not supported on CPU");
}

// nll_loss_forward(self, target, weight, ...), nll_loss2d_forward
void nll_loss(const OpEntry&, const IValue* args) {
  if (given(args[2])) check_same_dtype(tensor_at(args, 0), tensor_at(args, 2));
}

// binary_cross_entropy(self, target, weight, reduction)
void binary_cross_entropy(const OpEntry&, const IValue* args) {
  const at::Tensor &self = tensor_at(args, 0), &target = tensor_at(args, 1);
  TORCH_CHECK(self.scalar_type() == target.scalar_type(), "Found dtype ", target.scalar_type(), " but expected ",
              self.scalar_type());
}

// multi_margin_loss(self, target, p, margin, weight, reduction)
void multi_margin_loss(const OpEntry&, const IValue* args) {
  const at::Tensor &self = tensor_at(args, 0), &target = tensor_at(args, 1);
  int64_t frames = 0, dim = 0;
  at::native::multi_margin_loss_shape_check(frames, dim, self.dim(), self, target, optional_at(args, 4));
  TORCH_CHECK(target.scalar_type() == ScalarType::Long, "expected scalar type Long but found ", target.scalar_type());
}

// multilabel_margin_loss_forward(self, target, reduction)
void multilabel_margin_loss(const OpEntry&, const IValue* args) {
  const at::Tensor &self = tensor_at(args, 0), &target = tensor_at(args, 1);
  int64_t frames = 0, dim = 0;
  at::native::multilabel_margin_loss_shape_check(frames, dim, self.dim(), self, target);
}

}  // namespace torch_remote::frontend::checks
