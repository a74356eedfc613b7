// Layers: convolution, embedding, softmax, norms, dropout, losses.
#include <ATen/native/ConvUtils.h>

#include "frontend/shape_rules.h"

namespace torch_remote::frontend {
namespace {

using c10::IntArrayRef;
using c10::IValue;
using c10::ScalarType;

bool convolution(const OpEntry&, const IValue* args, Inferred& out) {
  const at::Tensor& input = args[0].toTensor();
  const at::Tensor& weight = args[1].toTensor();
  const int64_t rank = input.dim();
  const auto expected = static_cast<size_t>(std::max<int64_t>(weight.dim() - 2, 0));
  const std::pair<const char*, int> parameters[] = {{"stride", 3}, {"padding", 4}, {"dilation", 5}};
  for (const auto& [name, index] : parameters) {
    const c10::DimVector list = int_list(args[index]);
    TORCH_CHECK(list.size() == 1 || list.size() == expected, "expected ", name,
                " to be a single integer value or a list of ", expected,
                " values to match the convolution dimensions, but got ", name, "=", IntArrayRef(list));
  }
  if (rank < 3 || weight.dim() != rank || !same_float(input, weight) || !plain(input) || !plain(weight)) return false;
  const bool transposed = args[6].toBool();
  const auto stride = int_list(args[3]), padding = int_list(args[4]), dilation = int_list(args[5]);
  const auto output_padding = int_list(args[7]);
  const int64_t groups = args[8].toInt();
  const auto spatial = static_cast<size_t>(rank - 2);
  if (stride.size() != spatial || padding.size() != spatial || dilation.size() != spatial) return false;
  if (transposed && output_padding.size() != spatial) return false;
  if (groups <= 0 || weight.size(0) % groups != 0) return false;
  if (input.size(1) != (transposed ? weight.size(0) : weight.size(1) * groups)) return false;
  const int64_t channels = transposed ? weight.size(1) * groups : weight.size(0);
  if (given(args[2])) {
    const at::Tensor& bias = args[2].toTensor();
    if (bias.dim() != 1 || bias.size(0) != channels || !same_float(input, bias)) return false;
  }
  c10::DimVector sizes{input.size(0), channels};
  for (size_t i = 0; i < spatial; ++i) {
    if (stride[i] <= 0 || dilation[i] <= 0 || padding[i] < 0) return false;
    const int64_t kernel = dilation[i] * (weight.size(i + 2) - 1) + 1;
    if (transposed) {
      if (output_padding[i] < 0 || output_padding[i] >= std::max(stride[i], dilation[i])) return false;
      sizes.push_back((input.size(i + 2) - 1) * stride[i] - 2 * padding[i] + kernel + output_padding[i]);
      if (sizes.back() <= 0) return false;
    } else {
      const int64_t padded = input.size(i + 2) + 2 * padding[i];
      if (padded < kernel) return false;
      sizes.push_back((padded - kernel) / stride[i] + 1);
    }
  }
  out.add(sizes, input.scalar_type());
  return true;
}

// A contiguous gradient, or an undefined one where the output mask says no.
void add_wanted(Inferred& out, const IValue& wanted, IntArrayRef sizes, const at::Tensor& like) {
  if (wanted.toBool()) {
    out.add(sizes, like.scalar_type());
  } else {
    out.add_undefined();
  }
}

// convolution_backward(grad, input, weight, bias_sizes, stride, padding, dilation, transposed, output_padding, groups,
// mask)
bool convolution_backward(const OpEntry&, const IValue* args, Inferred& out) {
  const at::Tensor& grad = args[0].toTensor();
  const at::Tensor& input = args[1].toTensor();
  const at::Tensor& weight = args[2].toTensor();
  if (!same_float(grad, input) || !same_float(input, weight) || !plain(grad) || !plain(input) || !plain(weight))
    return false;
  const auto mask = args[10].toListRef();
  add_wanted(out, mask[0], input.sizes(), input);
  add_wanted(out, mask[1], weight.sizes(), weight);
  const int64_t channels = args[7].toBool() ? weight.size(1) * args[9].toInt() : weight.size(0);
  add_wanted(out, mask[2], {channels}, weight);
  return true;
}

bool embedding(const OpEntry&, const IValue* args, Inferred& out) {
  const at::Tensor& weight = args[0].toTensor();
  const at::Tensor& indices = args[1].toTensor();
  if (weight.dim() != 2 || !is_remote(weight) || !is_remote(indices)) return false;
  if (indices.scalar_type() != ScalarType::Long && indices.scalar_type() != ScalarType::Int) return false;
  c10::DimVector sizes(indices.sizes().begin(), indices.sizes().end());
  sizes.push_back(weight.size(1));
  out.add(sizes, weight.scalar_type());
  return true;
}

// embedding_dense_backward(grad, indices, num_weights, padding_idx, scale_grad_by_freq)
bool embedding_backward(const OpEntry&, const IValue* args, Inferred& out) {
  const at::Tensor& grad = args[0].toTensor();
  if (!is_remote(grad) || grad.dim() < 1) return false;
  out.add({args[2].toInt(), grad.size(-1)}, grad.scalar_type());
  return true;
}

// _softmax(self, dim, half_to_float), _log_softmax
bool softmax(const OpEntry& op, const IValue* args, Inferred& out) {
  const at::Tensor& self = args[0].toTensor();
  const int64_t dim = args[1].toInt();
  if (!is_remote(self) || !is_plain_float(self.scalar_type()) || !self.is_contiguous()) return false;
  if (self.dim() > 3 || op.desc->args.size() != 3 || args[2].toBool()) return false;
  const int64_t rank = std::max<int64_t>(self.dim(), 1);
  if (dim < -rank || dim >= rank) return false;
  out.add(self.sizes(), self.scalar_type());
  return true;
}

// native_layer_norm(input, normalized_shape, weight, bias, eps) -> output, mean, rstd
bool layer_norm(const OpEntry&, const IValue* args, Inferred& out) {
  const at::Tensor& input = args[0].toTensor();
  const auto shape = args[1].toListRef();
  const int64_t rank = input.dim();
  const int64_t axis = rank - static_cast<int64_t>(shape.size());
  if (!is_remote(input) || !input.is_contiguous() || axis < 0 || shape.empty()) return false;
  if (input.scalar_type() != ScalarType::Float && input.scalar_type() != ScalarType::Double) return false;
  for (size_t i = 0; i < shape.size(); ++i) {
    if (shape[i].toInt() != input.size(axis + static_cast<int64_t>(i))) return false;
  }
  for (int i : {2, 3}) {
    if (!given(args[i])) continue;
    const at::Tensor& t = args[i].toTensor();
    if (!same_float(input, t) || t.dim() != static_cast<int64_t>(shape.size()) ||
        !t.sizes().equals(input.sizes().slice(axis))) {
      return false;
    }
  }
  out.add(input.sizes(), input.scalar_type());
  c10::DimVector sizes(input.sizes().begin(), input.sizes().begin() + axis);
  sizes.resize(rank, 1);
  out.add(sizes, input.scalar_type());
  out.add(sizes, input.scalar_type());
  return true;
}

void add_masked(Inferred& out, bool wanted, const IValue& like, const at::Tensor& otherwise) {
  if (!wanted) {
    out.add_undefined();
    return;
  }
  const at::Tensor& t = given(like) ? like.toTensor() : otherwise;
  out.add(t.sizes(), t.scalar_type());
}

// native_layer_norm_backward(grad_out, input, normalized_shape, mean, rstd, weight, bias, output_mask)
bool layer_norm_backward(const OpEntry&, const IValue* args, Inferred& out) {
  const at::Tensor& grad = args[0].toTensor();
  const at::Tensor& input = args[1].toTensor();
  if (!same_float(grad, input) || !input.is_contiguous()) return false;
  if (input.scalar_type() != ScalarType::Float && input.scalar_type() != ScalarType::Double) return false;
  const auto mask = args[7].toListRef();
  if ((mask[1].toBool() || mask[2].toBool()) && !given(args[5])) return false;
  add_masked(out, mask[0].toBool(), args[1], input);
  add_masked(out, mask[1].toBool(), args[5], input);
  add_masked(out, mask[2].toBool(), args[6], args[5].isNone() ? input : args[5].toTensor());
  return true;
}

// native_batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps)
bool batch_norm(const OpEntry& op, const IValue* args, Inferred& out) {
  const at::Tensor& input = args[0].toTensor();
  if ((op.desc->name != "aten::native_batch_norm" && op.desc->name != "aten::_native_batch_norm_legit") ||
      !is_remote(input) || input.dim() < 2 || !plain(input))
    return false;
  if (input.scalar_type() != ScalarType::Float && input.scalar_type() != ScalarType::Double) return false;
  out.add(input.sizes(), input.scalar_type());
  const int64_t channels = args[5].toBool() ? input.size(1) : 0;
  out.add({channels}, input.scalar_type());
  out.add({channels}, input.scalar_type());
  return true;
}

// native_batch_norm_backward(grad_out, input, weight, running_mean, running_var, save_mean, save_invstd, train, eps,
// mask)
bool batch_norm_backward(const OpEntry& op, const IValue* args, Inferred& out) {
  const at::Tensor& grad = args[0].toTensor();
  const at::Tensor& input = args[1].toTensor();
  if (op.desc->name != "aten::native_batch_norm_backward" || !same_float(grad, input) || !plain(input) ||
      !plain(grad)) {
    return false;
  }
  const auto mask = args[9].toListRef();
  add_wanted(out, mask[0], input.sizes(), input);
  for (int i : {1, 2}) {
    add_wanted(out, mask[i], {input.size(1)}, input);
  }
  return true;
}

// native_group_norm(input, weight, bias, N, C, HxW, group, eps)
bool group_norm(const OpEntry&, const IValue* args, Inferred& out) {
  const at::Tensor& input = args[0].toTensor();
  if (!is_remote(input) || !plain(input)) return false;
  if (input.scalar_type() != ScalarType::Float && input.scalar_type() != ScalarType::Double) return false;
  const int64_t n = args[3].toInt(), groups = args[6].toInt();
  if (groups <= 0 || args[4].toInt() % groups != 0) return false;
  out.add(input.sizes(), input.scalar_type());
  out.add({n, groups}, input.scalar_type());
  out.add({n, groups}, input.scalar_type());
  return true;
}

// native_group_norm_backward(grad_out, input, mean, rstd, weight, N, C, HxW, group, mask)
bool group_norm_backward(const OpEntry&, const IValue* args, Inferred& out) {
  const at::Tensor& grad = args[0].toTensor();
  const at::Tensor& input = args[1].toTensor();
  if (!same_float(grad, input) || !plain(input) || !plain(grad)) return false;
  const auto mask = args[9].toListRef();
  const int64_t channels = args[6].toInt();
  add_wanted(out, mask[0], input.sizes(), input);
  for (int i : {1, 2}) {
    add_wanted(out, mask[i], {channels}, input);
  }
  return true;
}

// native_dropout(input, p, train) -> output, mask
bool dropout(const OpEntry& op, const IValue* args, Inferred& out) {
  const at::Tensor& input = args[0].toTensor();
  if (op.desc->name != "aten::native_dropout" || !is_plain_float(input.scalar_type())) return false;
  if (!like(op, args, out)) return false;
  const ResultMeta& output = out.results[0];
  const c10::DimVector sizes = output.sizes, strides = output.strides;
  out.add(sizes, strides, ScalarType::Bool);
  return true;
}

// native_dropout_backward(grad, mask, scale)
bool dropout_backward(const OpEntry&, const IValue* args, Inferred& out) {
  const at::Tensor* operands[2] = {&args[0].toTensor(), &args[1].toTensor()};
  if (!is_remote(*operands[0]) || !is_plain_float(operands[0]->scalar_type())) return false;
  return add_broadcast(operands, operands[0]->scalar_type(), out);
}

// mse_loss_backward(grad, self, target, reduction) and its like: elementwise over all three.
bool loss_backward(const OpEntry&, const IValue* args, Inferred& out) {
  const at::Tensor* operands[3] = {&args[1].toTensor(), &args[2].toTensor(), &args[0].toTensor()};
  const ScalarType dtype = operands[0]->scalar_type();
  for (const at::Tensor* t : operands) {
    if (!is_remote(*t) || t->scalar_type() != dtype || !is_plain_float(dtype)) return false;
  }
  return add_broadcast(operands, dtype, out);
}

}  // namespace

ShapeRuleFunction find_nn_rule(const ir::OpDesc& desc) {
  const std::string_view base = desc.name.substr(0, desc.name.find('.'));
  if (base == "aten::native_dropout") return dropout;
  if (base == "aten::native_dropout_backward") return dropout_backward;
  if (base == "aten::mse_loss_backward" || base == "aten::smooth_l1_loss_backward" ||
      base == "aten::huber_loss_backward") {
    return loss_backward;
  }
  switch (desc.shape_rule) {
    case ir::ShapeRule::kConvolution:
      return base == "aten::convolution" ? convolution : nullptr;
    case ir::ShapeRule::kConvolutionBackward:
      return base == "aten::convolution_backward" ? convolution_backward : nullptr;
    case ir::ShapeRule::kEmbedding:
      return base == "aten::embedding" ? embedding : nullptr;
    case ir::ShapeRule::kEmbeddingBackward:
      return base == "aten::embedding_dense_backward" ? embedding_backward : nullptr;
    case ir::ShapeRule::kSoftmax:
      return base == "aten::_softmax" || base == "aten::_log_softmax" ? softmax : nullptr;
    case ir::ShapeRule::kLayerNorm:
      return layer_norm;
    case ir::ShapeRule::kLayerNormBackward:
      return layer_norm_backward;
    case ir::ShapeRule::kBatchNorm:
      return batch_norm;
    case ir::ShapeRule::kBatchNormBackward:
      return batch_norm_backward;
    case ir::ShapeRule::kGroupNorm:
      return group_norm;
    case ir::ShapeRule::kGroupNormBackward:
      return group_norm_backward;
    default:
      return nullptr;
  }
}

}  // namespace torch_remote::frontend
