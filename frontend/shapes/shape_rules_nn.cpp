// Rules of layers: convolution, embedding, softmax, norms, dropout, losses.
#include <ATen/ExpandUtils.h>
#include <ATen/native/ConvUtils.h>
#include <ATen/native/cpu/mixed_data_type.h>

#include "frontend/shapes/shape_rules.h"
#include "frontend/versions/versions.h"

namespace torch_remote::frontend {
namespace {

using c10::IntArrayRef;
using c10::IValue;
using c10::MemoryFormat;
using c10::ScalarType;

// An optional tensor argument; undefined if it is not given.
const at::Tensor& optional_tensor(const IValue& value) {
  static const auto* none = new at::Tensor;
  return value.isNone() ? *none : value.toTensor();
}

// A CPU tensor with the same metadata and no memory, to ask torch for decisions that it makes on CPU.
at::Tensor cpu_like(const at::Tensor& t, IntArrayRef sizes, IntArrayRef strides) {
  c10::Storage storage(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), c10::SymInt(static_cast<int64_t>(t.storage().nbytes())),
      c10::DataPtr(nullptr, c10::Device(c10::kCPU)), nullptr, false));
  auto impl =
      c10::make_intrusive<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU), t.dtype());
  impl->set_sizes_and_strides(sizes, strides, t.storage_offset());
  return at::Tensor(std::move(impl));
}

// A tensor of rank 3 is convolved as one of rank 4, with a third dim of size 1.
at::Tensor cpu_like_with_height(const at::Tensor& t) {
  return cpu_like(t, {t.size(0), t.size(1), 1, t.size(2)},
                  {t.stride(0), t.stride(1), t.size(2) * t.stride(2), t.stride(2)});
}

// Whether the tensor is contiguous and not also channels-last, also with that additional dim.
bool is_only_contiguous_for_convolution(const at::Tensor& t) {
  if (!is_only_contiguous(t)) return false;
  if (t.dim() != 3) return true;
  const int64_t sizes[] = {t.size(0), t.size(1), 1, t.size(2)};
  const int64_t strides[] = {t.stride(0), t.stride(1), t.size(2) * t.stride(2), t.stride(2)};
  return !c10::is_channels_last_strides_2d<int64_t>(sizes, strides);
}

// One number for each spatial dim. The argument may have one for all of them.
c10::DimVector for_each_dim(const IValue& value, size_t dims) {
  c10::DimVector list = int_list(value);
  if (list.size() == 1) list.resize(dims, list[0]);
  return list;
}

struct ConvolutionFormat {
  MemoryFormat result = MemoryFormat::Contiguous;
  MemoryFormat weight_grad = MemoryFormat::Contiguous;
};

// The memory format of a convolution on CPU. It depends on the backend that torch chooses by sizes and strides. `rest`
// has the arguments from stride on: stride, padding, dilation, transposed, output_padding, groups.
ConvolutionFormat convolution_format(at::Tensor input, at::Tensor weight, const IValue* rest) {
  ConvolutionFormat format;
  if (is_only_contiguous_for_convolution(input) && is_only_contiguous_for_convolution(weight)) return format;
  std::vector<c10::SymInt> lists[4];  // stride, padding, dilation, output_padding
  const bool flat = input.dim() == 3;
  for (int i = 0; i < 4; ++i) {
    if (flat) lists[i].emplace_back(i == 0 || i == 2 ? 1 : 0);
    for (const int64_t item : for_each_dim(rest[i == 3 ? 4 : i], input.dim() - 2)) lists[i].emplace_back(item);
  }
  if (flat) {
    if (!input.is_contiguous()) {  // CPU makes it contiguous
      c10::DimVector packed;
      contiguous_strides(input.sizes(), packed);
      input = cpu_like(input, input.sizes(), packed);
    }
    input = cpu_like_with_height(input);
    weight = cpu_like_with_height(weight);
  } else {
    input = cpu_like(input, input.sizes(), input.strides());
    weight = cpu_like(weight, weight.sizes(), weight.strides());
  }
  const int64_t groups = rest[5].toInt();
  const auto backend = at::native::select_conv_backend(input, weight, std::nullopt, lists[0], lists[1], lists[2],
                                                       rest[3].toBool(), lists[3], groups, std::nullopt);
  format.result = at::native::_determine_backend_memory_format(input, weight, backend);
  format.weight_grad = format.result;
  const bool mkldnn = backend == at::native::ConvBackend::Mkldnn || backend == at::native::ConvBackend::MkldnnTranspose;
  if (groups > 1 && !mkldnn) {  // computed group by group, then concatenated
    const bool last = input.suggest_memory_format() == MemoryFormat::ChannelsLast ||
                      weight.suggest_memory_format() == MemoryFormat::ChannelsLast;
    format.weight_grad = last ? MemoryFormat::ChannelsLast : MemoryFormat::Contiguous;
  }
  return format;
}

void add_convolved(Inferred& out, IntArrayRef sizes, MemoryFormat format, ScalarType dtype) {
  if (format == MemoryFormat::Contiguous || sizes.size() != 3) {
    out.add(sizes, format, dtype);
  } else {
    const auto strides = c10::get_channels_last_strides_2d({sizes[0], sizes[1], 1, sizes[2]});
    out.add(sizes, {strides[0], strides[1], strides[3]}, dtype);
  }
}

// Whether torch convolves without a backend (ConvBackend::Empty).
bool is_empty_convolution(const at::Tensor& input) { return input.size(0) == 0 || input.size(1) == 0; }

// For an empty input, CPU multiplies the input by a number and resizes the result. If the sizes are the input's, the
// result has the strides of that multiplication; otherwise it is contiguous.
void add_empty_convolved(Inferred& out, IntArrayRef sizes, const at::Tensor& input) {
  ResultMeta product;
  product.dtype = input.scalar_type();
  broadcast_result(&input, product, true);
  if (sizes.equals(product.sizes)) {
    out.results.push_back(std::move(product));
  } else {
    out.add(sizes, input.scalar_type());
  }
}

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
  if (rank < 3 || weight.dim() != rank || !same_float(input, weight)) return false;
  const bool transposed = args[6].toBool();
  const auto spatial = static_cast<size_t>(rank - 2);
  const auto stride = for_each_dim(args[3], spatial), padding = for_each_dim(args[4], spatial),
             dilation = for_each_dim(args[5], spatial), output_padding = for_each_dim(args[7], spatial);
  const int64_t groups = args[8].toInt();
  if (stride.size() != spatial || padding.size() != spatial || dilation.size() != spatial) return false;
  if (transposed && output_padding.size() != spatial) return false;
  if (groups <= 0 || weight.size(0) % groups != 0) return false;
  const int64_t expected_channels = transposed ? weight.size(0) : weight.size(1) * groups;
  if (input.size(1) != expected_channels) return false;
  const int64_t channels = transposed ? weight.size(1) * groups : weight.size(0);
  if (given(args[2])) {
    const at::Tensor& bias = args[2].toTensor();
    if (bias.dim() != 1 || bias.size(0) != channels || !same_float(input, bias)) return false;
  }
  c10::DimVector sizes{input.size(0), channels};
  for (size_t i = 0; i < spatial; ++i) {
    if (stride[i] <= 0 || dilation[i] <= 0 || padding[i] < 0) return false;
    const int64_t kernel = dilation[i] * (weight.size(static_cast<int64_t>(i) + 2) - 1) + 1;
    if (transposed) {
      if (output_padding[i] < 0 || output_padding[i] >= std::max(stride[i], dilation[i])) return false;
      sizes.push_back((input.size(static_cast<int64_t>(i) + 2) - 1) * stride[i] - 2 * padding[i] + kernel +
                      output_padding[i]);
      if (sizes.back() <= 0) return false;
    } else {
      const int64_t padded = input.size(static_cast<int64_t>(i) + 2) + 2 * padding[i];
      if (padded < kernel) return false;
      sizes.push_back((padded - kernel) / stride[i] + 1);
    }
  }
  if (is_empty_convolution(input)) {
    add_empty_convolved(out, sizes, input);
  } else {
    add_convolved(out, sizes, convolution_format(input, weight, args + 3).result, input.scalar_type());
  }
  return true;
}

// A gradient, or an undefined tensor if the output mask excludes it.
void add_wanted(Inferred& out, const IValue& wanted, IntArrayRef sizes, const at::Tensor& like,
                MemoryFormat format = MemoryFormat::Contiguous) {
  if (wanted.toBool()) {
    add_convolved(out, sizes, format, like.scalar_type());
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
  if (!same_float(grad, input) || !same_float(input, weight) || input.dim() < 3) return false;
  const auto mask = args[10].toListRef();
  if (is_empty_convolution(input)) {  // zeros_like of input and weight
    for (const auto& [wanted, like] : {std::pair(mask[0], &input), std::pair(mask[1], &weight)}) {
      if (!wanted.toBool()) {
        out.add_undefined();
      } else if (like->is_non_overlapping_and_dense()) {
        out.add(like->sizes(), like->strides(), like->scalar_type());
      } else {
        out.add(like->sizes(), at::infer_dense_strides(like->sizes(), like->strides()), like->scalar_type());
      }
    }
  } else {
    const ConvolutionFormat format = convolution_format(input, weight, args + 4);
    add_wanted(out, mask[0], input.sizes(), input, format.result);
    add_wanted(out, mask[1], weight.sizes(), weight, format.weight_grad);
  }
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

// _embedding_bag(weight, indices, offsets, scale_grad_by_freq, mode, sparse, per_sample_weights, include_last_offset,
// padding_idx) -> output, offset2bag, bag_size, max_indices. The last three are for the backward pass; CPU leaves those
// empty that it does not need there.
template <bool kForwardOnly>
bool embedding_bag(const OpEntry&, const IValue* args, Inferred& out) {
  const at::Tensor& weight = args[0].toTensor();
  const at::Tensor& indices = args[1].toTensor();
  const at::Tensor& offsets = args[2].toTensor();
  const at::Tensor& scale = optional_tensor(args[6]);
  const bool last = args[7].toBool();
  if (weight.dim() != 2 || indices.dim() != 1 || offsets.dim() != 1 || (last && offsets.size(0) < 1)) return false;
  for (const at::Tensor* t : {&indices, &offsets}) {
    if (t->scalar_type() != ScalarType::Long && t->scalar_type() != ScalarType::Int) return false;
  }
  constexpr int64_t kSum = 0, kMax = 2;
  const int64_t mode = args[4].toInt(), padding_idx = args[8].toInt();
  if (scale.defined() && (mode != kSum || scale.dim() != 1 || scale.numel() != indices.numel() ||
                          scale.scalar_type() != weight.scalar_type())) {
    return false;
  }
  const ScalarType index = c10::promoteTypes(indices.scalar_type(), offsets.scalar_type());
  const int64_t bags = offsets.size(0) - last;
  const bool fast = mode == kSum && is_standard_float(weight.scalar_type()) &&
                    weight.scalar_type() != ScalarType::Double && weight.stride(1) == 1 && padding_idx < 0 &&
                    (!scale.defined() || scale.stride(0) == 1);
  const int64_t sizes = !kForwardOnly || mode != kSum ? bags : offsets.size(0);
  out.add({bags, weight.size(1)}, weight.scalar_type());
  out.add({fast ? 0 : indices.size(0)}, index);
  out.add({sizes}, index);
  if (mode == kMax) {
    out.add({bags, weight.size(1)}, index);
  } else {
    out.add({sizes}, index);
  }
  return true;
}

// _softmax(self, dim, half_to_float), _log_softmax
bool softmax(const OpEntry& op, const IValue* args, Inferred& out) {
  const at::Tensor& self = args[0].toTensor();
  const int64_t dim = args[1].toInt();
  if (!is_remote(self) || !is_standard_float(self.scalar_type()) || !self.is_contiguous()) return false;
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
  if (!is_remote(input) || axis < 0 || shape.empty() || !is_standard_float(input.scalar_type())) return false;
  for (size_t i = 0; i < shape.size(); ++i) {
    if (shape[i].toInt() != input.size(axis + static_cast<int64_t>(i))) return false;
  }
  const at::Tensor& weight = optional_tensor(args[2]);
  const at::Tensor& bias = optional_tensor(args[3]);
  for (const at::Tensor* t : {&weight, &bias}) {
    if (t->defined() && (!is_remote(*t) || !t->sizes().equals(input.sizes().slice(axis)))) return false;
  }
  const bool mixed = at::native::is_mixed_type(input, weight, bias);
  if (mixed) at::native::check_mixed_data_type(input, weight, bias);
  const ScalarType statistics = at::native::param_scalar_type(input, mixed);
  out.add(input.sizes(), input.scalar_type());
  c10::DimVector sizes(input.sizes().begin(), input.sizes().begin() + axis);
  sizes.resize(rank, 1);
  out.add(sizes, statistics);
  out.add(sizes, statistics);
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
  if (!same_float(grad, input) || !is_standard_float(input.scalar_type())) return false;
  const auto mask = args[7].toListRef();
  if ((mask[1].toBool() && !given(args[5])) || (mask[2].toBool() && !given(args[5]) && !given(args[6]))) return false;
  add_masked(out, mask[0].toBool(), args[1], input);
  add_masked(out, mask[1].toBool(), args[5], input);
  add_masked(out, mask[2].toBool(), args[6], given(args[5]) ? args[5].toTensor() : input);
  return true;
}

// native_batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps) -> output, save_mean,
// save_invstd, and similar ops. `updates` stands for _batch_norm_with_update, which always trains and has a fourth
// result.
bool batch_norm_like(const IValue* args, bool running, bool training, bool updates, Inferred& out) {
  const at::Tensor& input = args[0].toTensor();
  if (!is_remote(input) || input.dim() < 2 || !is_standard_float(input.scalar_type())) return false;
  const at::Tensor& weight = optional_tensor(args[1]);
  const at::Tensor& bias = optional_tensor(args[2]);
  const at::Tensor none;
  const at::Tensor& mean = running ? optional_tensor(args[3]) : none;
  const at::Tensor& var = running ? optional_tensor(args[4]) : none;
  for (const at::Tensor* t : {&weight, &bias, &mean, &var}) {
    if (t->defined() && (t->dim() != 1 || t->size(0) != input.size(1))) return false;
  }
  TORCH_CHECK(input.numel() > 0 || input.size(1) == 0,
              "input tensor must have at least one element, but got input_sizes = ", input.sizes());
  const bool mixed = at::native::is_mixed_type(input, weight, bias, mean, var);
  if (mixed) at::native::check_mixed_data_type(input, weight, bias, mean, var);
  const ScalarType statistics = at::native::param_scalar_type(input, mixed);
  out.add(input.sizes(), input.suggest_memory_format(), input.scalar_type());
  const int64_t channels = training ? input.size(1) : 0;
  out.add({channels}, statistics);
  out.add({channels}, statistics);
  if (updates) out.add({0}, ScalarType::Byte);
  return true;
}

bool batch_norm(const OpEntry&, const IValue* args, Inferred& out) {
  return batch_norm_like(args, true, args[5].toBool(), false, out);
}

bool batch_norm_no_stats(const OpEntry&, const IValue* args, Inferred& out) {
  return batch_norm_like(args, false, args[3].toBool(), false, out);
}

bool batch_norm_no_training(const OpEntry&, const IValue* args, Inferred& out) {
  return batch_norm_like(args, true, false, false, out);
}

bool batch_norm_with_update(const OpEntry&, const IValue* args, Inferred& out) {
  return batch_norm_like(args, true, true, true, out);
}

// In eval mode batch statistics are neither read nor written. It has the four results of batch_norm_with_update.
bool batch_norm_no_update(const OpEntry&, const IValue* args, Inferred& out) {
  return batch_norm_like(args, true, false, true, out);
}

// The functional forms of batch norms that write running statistics return these as two more results.
bool with_running_statistics(const IValue* args, bool good, Inferred& out) {
  if (!good) return false;
  for (const int i : {3, 4}) out.add(args[i].toTensor().sizes(), args[i].toTensor().scalar_type());
  return true;
}

bool batch_norm_functional(const OpEntry&, const IValue* args, Inferred& out) {
  return with_running_statistics(args, batch_norm_like(args, true, args[5].toBool(), false, out), out);
}

bool batch_norm_with_update_functional(const OpEntry&, const IValue* args, Inferred& out) {
  return with_running_statistics(args, batch_norm_like(args, true, true, true, out), out);
}

// native_batch_norm_backward(grad_out, input, weight, running_mean, running_var, save_mean, save_invstd, train, eps,
// mask)
bool batch_norm_backward(const OpEntry&, const IValue* args, Inferred& out) {
  const at::Tensor& grad = args[0].toTensor();
  const at::Tensor& input = args[1].toTensor();
  if (!same_float(grad, input) || input.dim() < 2) return false;
  for (int i : {2, 3, 4, 5, 6}) {  // the weights' gradients have the weights' or the statistics' dtype
    if (given(args[i]) && args[i].toTensor().scalar_type() != input.scalar_type()) return false;
  }
  const auto mask = args[9].toListRef();
  add_wanted(out, mask[0], input.sizes(), input, input.suggest_memory_format());
  for (int i : {1, 2}) add_wanted(out, mask[i], {input.size(1)}, input);
  return true;
}

// native_group_norm(input, weight, bias, N, C, HxW, group, eps)
bool group_norm(const OpEntry&, const IValue* args, Inferred& out) {
  const at::Tensor& input = args[0].toTensor();
  if (!is_remote(input)) return false;
  const MemoryFormat format = input.suggest_memory_format();
  TORCH_CHECK(kGroupNormTakesAnyStrides || input.is_contiguous(format),
              "Expected X.is_contiguous(memory_format) to be true, but got false.");
  if (!is_standard_float(input.scalar_type())) return false;
  const at::Tensor weight = optional_tensor(args[1]), bias = optional_tensor(args[2]);
  const bool mixed = at::native::is_mixed_type(input, weight, bias);
  if (mixed) at::native::check_mixed_data_type(input, weight, bias);
  const ScalarType statistics = at::native::param_scalar_type(input, mixed);
  const int64_t n = args[3].toInt(), groups = args[6].toInt();
  if (groups <= 0 || args[4].toInt() % groups != 0) return false;
  out.add(input.sizes(), format, input.scalar_type());
  out.add({n, groups}, statistics);
  out.add({n, groups}, statistics);
  return true;
}

// native_group_norm_backward(grad_out, input, mean, rstd, weight, N, C, HxW, group, mask)
bool group_norm_backward(const OpEntry&, const IValue* args, Inferred& out) {
  const at::Tensor& grad = args[0].toTensor();
  const at::Tensor& input = args[1].toTensor();
  if (!same_float(grad, input)) return false;
  const auto mask = args[9].toListRef();
  const int64_t channels = args[6].toInt();
  add_wanted(out, mask[0], input.sizes(), input, input.suggest_memory_format());
  for (int i : {1, 2}) {
    add_wanted(out, mask[i], {channels}, input);
  }
  return true;
}

// log_sigmoid_forward(self) -> output, buffer
bool log_sigmoid(const OpEntry&, const IValue* args, Inferred& out) {
  const at::Tensor& self = args[0].toTensor();
  if (!is_standard_float(self.scalar_type())) return false;
  out.add(self.sizes(), self.scalar_type());
  out.add(self.sizes(), self.scalar_type());
  return true;
}

// log_sigmoid_backward(grad, self, buffer): empty_like(grad)
bool log_sigmoid_backward(const OpEntry& op, const IValue* args, Inferred& out) {
  const at::Tensor& grad = args[0].toTensor();
  const at::Tensor& self = args[1].toTensor();
  return is_standard_float(grad.scalar_type()) && same_float(grad, self) && grad.sizes().equals(self.sizes()) &&
         like_first(op, args, out);
}

// _prelu_kernel_backward(grad, self, weight) -> gradients of self and weight, with equal sizes
bool prelu_backward(const OpEntry&, const IValue* args, Inferred& out) {
  const at::Tensor& grad = args[0].toTensor();
  const at::Tensor& self = args[1].toTensor();
  const at::Tensor& weight = args[2].toTensor();
  const ScalarType dtype = self.scalar_type();
  if (!is_standard_float(dtype) || !same_float(grad, self) || !same_float(self, weight)) return false;
  return add_broadcast({&self, &weight, &grad}, dtype, out) && add_broadcast({&self, &weight, &grad}, dtype, out);
}

// A tensor without elements: the CPU kernel returns it unchanged, with its strides.
bool channel_shuffle(const OpEntry&, const IValue* args, Inferred& out) {
  const at::Tensor& self = args[0].toTensor();
  if (self.numel() != 0 || self.dim() <= 2 || args[1].toInt() <= 0 || self.size(1) % args[1].toInt() != 0) return false;
  out.add(self.sizes(), self.strides(), self.scalar_type());
  return true;
}

// native_dropout(input, p, train) -> output, mask
bool dropout(const OpEntry& op, const IValue* args, Inferred& out) {
  const at::Tensor& input = args[0].toTensor();
  if (!is_standard_float(input.scalar_type())) return false;
  if (!like_first(op, args, out)) return false;
  const ResultMeta& output = out.results[0];
  const c10::DimVector sizes = output.sizes, strides = output.strides;
  out.add(sizes, strides, ScalarType::Bool);
  return true;
}

// native_dropout_backward(grad, mask, scale)
bool dropout_backward(const OpEntry&, const IValue* args, Inferred& out) {
  const at::Tensor* operands[2] = {&args[0].toTensor(), &args[1].toTensor()};
  if (!is_remote(*operands[0])) return false;
  const ScalarType dtype = operands[0]->scalar_type();
  return add_broadcast(operands, c10::isIntegralType(dtype, true) ? c10::get_default_dtype_as_scalartype() : dtype,
                       out);
}

// Elementwise over operands of one dtype; the result is contiguous whatever the operands' strides are.
bool add_packed(c10::ArrayRef<const at::Tensor*> operands, Inferred& out) {
  const ScalarType dtype = operands[0]->scalar_type();
  for (const at::Tensor* t : operands) {
    if (!is_remote(*t) || t->scalar_type() != dtype || !is_standard_float(dtype)) return false;
  }
  ResultMeta broadcast;
  if (!broadcast_result(operands, broadcast)) return false;
  out.add(broadcast.sizes, dtype);
  return true;
}

// mse_loss_backward(grad, self, target, reduction) and similar ops.
bool loss_backward(const OpEntry&, const IValue* args, Inferred& out) {
  return add_packed({&args[1].toTensor(), &args[2].toTensor(), &args[0].toTensor()}, out);
}

// binary_cross_entropy_with_logits(self, target, weight, pos_weight, reduction): the kernel computes the result in
// place of 1 - target.
bool loss_with_logits(const OpEntry&, const IValue* args, Inferred& out) {
  const at::Tensor& self = args[0].toTensor();
  const at::Tensor& target = args[1].toTensor();
  if (!is_standard_float(self.scalar_type()) || !same_float(self, target) || !self.sizes().equals(target.sizes())) {
    return false;
  }
  if (given(args[2]) || given(args[3]) || args[4].toInt() != at::Reduction::None) return false;
  return add_broadcast({&target}, target.scalar_type(), out, true);
}

// normal(mean, std, generator), where one or both of them are tensors.
bool normal(const OpEntry&, const IValue* args, Inferred& out) {
  const at::Tensor* operands[2];
  size_t count = 0;
  for (int i : {0, 1}) {
    if (args[i].isTensor()) operands[count++] = &args[i].toTensor();
  }
  return add_packed({operands, count}, out);
}

}  // namespace

std::span<const NamedShapeRule> nn_rules() {
  using enum ir::ShapeFunction;
  static constexpr NamedShapeRule kRules[] = {
      {kConvolution, convolution},
      {kConvolutionBackward, convolution_backward},
      {kEmbedding, embedding},
      {kEmbeddingBackward, embedding_backward},
      {kEmbeddingBag, embedding_bag<false>},
      {kEmbeddingBagForwardOnly, embedding_bag<true>},
      {kSoftmax, softmax},
      {kLayerNorm, layer_norm},
      {kLayerNormBackward, layer_norm_backward},
      {kBatchNorm, batch_norm},
      {kBatchNormNoStats, batch_norm_no_stats},
      {kBatchNormNoTraining, batch_norm_no_training},
      {kBatchNormNoUpdate, batch_norm_no_update},
      {kBatchNormFunctional, batch_norm_functional},
      {kBatchNormWithUpdate, batch_norm_with_update},
      {kBatchNormWithUpdateFunctional, batch_norm_with_update_functional},
      {kBatchNormBackward, batch_norm_backward},
      {kGroupNorm, group_norm},
      {kGroupNormBackward, group_norm_backward},
      {kDropout, dropout},
      {kDropoutBackward, dropout_backward},
      {kNormal, normal},
      {kLossBackward, loss_backward},
      {kLossWithLogits, loss_with_logits},
      {kLogSigmoid, log_sigmoid},
      {kLogSigmoidBackward, log_sigmoid_backward},
      {kPreluBackward, prelu_backward},
      {kChannelShuffle, channel_shuffle},
  };
  return kRules;
}

}  // namespace torch_remote::frontend
