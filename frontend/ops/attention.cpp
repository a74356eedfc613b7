#include <ATen/Context.h>
#include <ATen/ExpandUtils.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/functorch/BatchedTensorImpl.h>
#include <ATen/functorch/DynamicLayer.h>
#include <ATen/functorch/PlumbingHelper.h>
#include <ATen/functorch/TensorWrapper.h>
#include <ATen/native/DispatchStub.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>
#include <ATen/ops/_safe_softmax.h>
#include <ATen/ops/_scaled_dot_product_fused_attention_overrideable.h>
#include <ATen/ops/_scaled_dot_product_fused_attention_overrideable_backward.h>
#include <ATen/ops/ones.h>
#include <torch/library.h>

#include <cmath>
#include <limits>

#include "frontend/device/tensor.h"
#include "frontend/record/record_kernel.h"
#include "frontend/record/recorder.h"
#include "ir/ops/op_table_generated.h"

// scaled_dot_product_attention as one op. It is recorded as `remote::attention`, which also returns the log-sum-exp for
// the backward pass. torch's composite handles what that op does not support: dropout, a mask that needs a gradient,
// unequal head sizes, and tangents of forward AD. It also handles all calls under sdpa_kernel(SDPBackend.MATH).
namespace torch_remote::frontend {
namespace {

using at::Tensor;
using c10::IValue;
using OptionalTensor = std::optional<Tensor>;
using Gradients = std::tuple<Tensor, Tensor, Tensor, Tensor>;
using Results = std::tuple<Tensor, Tensor, Tensor, Tensor, c10::SymInt, c10::SymInt, Tensor, Tensor, Tensor>;

// Sizes may be symbols (torch.compile). Sizes that only a guard could compare count as different.
bool same(const c10::SymInt& a, const c10::SymInt& b) { return TORCH_GUARD_OR_FALSE(a.sym_eq(b)); }
bool same_size(const Tensor& a, int64_t i, const Tensor& b, int64_t j) { return same(a.sym_size(i), b.sym_size(j)); }
bool spans(const c10::SymInt& size, const c10::SymInt& wanted) { return same(size, wanted) || same(size, 1); }
bool is_empty(const Tensor& tensor) { return TORCH_GUARD_OR_FALSE(tensor.sym_numel().sym_eq(0)); }

bool takes_mask(const std::optional<Tensor>& mask, const Tensor& query, const Tensor& key) {
  if (!mask.has_value() || !mask->defined()) return true;
  if (mask->requires_grad() || mask->device() != query.device()) return false;
  if (mask->scalar_type() != c10::kBool && mask->scalar_type() != query.scalar_type()) return false;
  if (mask->dim() != 2 && mask->dim() != 4) return false;
  return spans(mask->sym_size(-2), query.sym_size(-2)) && spans(mask->sym_size(-1), key.sym_size(-2)) &&
         (mask->dim() == 2 ||
          (spans(mask->sym_size(0), query.sym_size(0)) && spans(mask->sym_size(1), query.sym_size(1))));
}

// Whether the numbers of heads fit: equal, or, if `grouped`, several query heads per key head. torch.compile expands
// grouped heads itself.
bool heads_match(const Tensor& query, const Tensor& key, bool grouped) {
  if (!grouped || query.key_set().has(c10::DispatchKey::Python)) return !grouped && same_size(query, 1, key, 1);
  return key.size(1) > 0 && query.size(1) % key.size(1) == 0;
}

// Whether the tensor has a tangent of forward AD, on any level of torch.func.
bool has_tangent(const Tensor& tensor) {
  if (tensor._fw_grad(/*level=*/0).defined()) return true;
  if (const auto* batched = at::functorch::maybeGetBatchedImpl(tensor)) return has_tangent(batched->value());
  if (const auto* wrapper = at::functorch::maybeGetTensorWrapper(tensor)) return has_tangent(wrapper->value());
  return false;
}

// The requirements of every fused kernel, including CUDA's.
bool is_usual(const Tensor& query, const Tensor& key, const Tensor& value) {
  const c10::ScalarType dtype = query.scalar_type();
  const bool floating = dtype == c10::kFloat || dtype == c10::kDouble || dtype == c10::kBFloat16 || dtype == c10::kHalf;
  return floating && query.dim() == 4 && key.dim() == 4 && value.dim() == 4 && key.scalar_type() == dtype &&
         value.scalar_type() == dtype;
}

bool takes(const Tensor& query, const Tensor& key, const Tensor& value, const std::optional<Tensor>& mask,
           double dropout, bool causal, bool grouped) {
  bool flash = dropout == 0.0 && is_usual(query, key, value) && !(causal && mask.has_value());
  flash = flash && same_size(query, 3, key, 3) && same_size(query, 3, value, 3) && heads_match(query, key, grouped) &&
          same_size(key, 1, value, 1) && same_size(query, 0, key, 0) && same_size(key, 0, value, 0) &&
          same_size(key, 2, value, 2) && !is_empty(query) && !is_empty(key) && takes_mask(mask, query, key);
  for (const Tensor* t : {&query, &key, &value}) flash = flash && same(t->sym_stride(3), 1) && !has_tangent(*t);
  return flash;
}

// Returns the first backend in the user's order of preference that supports the call. The names of CUDA's fused kernels
// all mean this device's fused kernel.
int64_t choose(const Tensor& query, const Tensor& key, const Tensor& value, const std::optional<Tensor>& mask,
               double dropout, bool causal, std::optional<double>, bool grouped) {
  constexpr auto kMath = static_cast<int64_t>(sdp::SDPBackend::math);
  at::Context& context = at::globalContext();
  std::optional<bool> fused;  // whether the fused kernel supports the call
  for (const at::SDPBackend backend : context.sDPPriorityOrder()) {
    if (backend == at::SDPBackend::math) {
      if (context.userEnabledMathSDP()) return kMath;
      continue;
    }
    const bool enabled = backend == at::SDPBackend::flash_attention       ? context.userEnabledFlashSDP()
                         : backend == at::SDPBackend::efficient_attention ? context.userEnabledMemEfficientSDP()
                         : backend == at::SDPBackend::cudnn_attention     ? context.userEnabledCuDNNSDP()
                                                                          : context.userEnabledOverrideableSDP();
    if (!enabled) continue;
    if (!fused.has_value()) fused = takes(query, key, value, mask, dropout, causal, grouped);
    if (*fused) return static_cast<int64_t>(sdp::SDPBackend::overrideable);
  }
  TORCH_CHECK(fused.has_value(),
              "remote: No viable backend for scaled_dot_product_attention was found. This is likely due to turning off "
              "both the math kernel and the fused kernels; enable one with torch.nn.attention.sdpa_kernel");
  // CUDA's fused kernels support more, for example dropout. So code that enables only them falls back to math here.
  TORCH_CHECK(is_usual(query, key, value),
              "remote: No available kernel. Aborting execution. Fused attention takes query, key and value of 4 "
              "dimensions and one floating dtype, but got ",
              query.dim(), ", ", key.dim(), " and ", value.dim(), " dimensions, ", query.scalar_type(), ", ",
              key.scalar_type(), " and ", value.scalar_type(),
              "; enable SDPBackend.MATH in torch.nn.attention.sdpa_kernel too");
  return kMath;
}

// A tensor [b, h, n, d] whose memory is laid out as [b, n, h, d].
Tensor heads_tensor(int64_t b, int64_t h, int64_t n, int64_t d, c10::ScalarType dtype, c10::DeviceIndex device) {
  return make_tensor({b, h, n, d}, {n * h * d, d, h * d, 1}, dtype, device);
}

Results forward(const Tensor& query, const Tensor& key, const Tensor& value, const std::optional<Tensor>& bias,
                double dropout, bool causal, bool, std::optional<double> scale) {
  TORCH_CHECK(dropout == 0.0,
              "remote: fused attention has no dropout; scaled_dot_product_attention chooses another backend");
  const ir::OpDesc& op = ir::op_desc(ir::ops::remote_attention);
  const IValue args[] = {query, key, value, bias, causal, scale};
  const c10::DeviceIndex device = operand_device(op, args);
  const int64_t b = query.size(0), h = query.size(1), n = query.size(2);
  // Has the strides of empty_like. empty_like would fill the memory in deterministic mode, but the op overwrites it
  // all.
  const Tensor out = query.is_non_overlapping_and_dense()
                         ? make_tensor(query.sizes(), query.strides(), query.scalar_type(), device)
                         : make_tensor(query.sizes(), at::infer_dense_strides(query.sizes(), query.strides()),
                                       query.scalar_type(), device);
  const auto statistics = query.scalar_type() == c10::kDouble ? c10::kDouble : c10::kFloat;
  const Tensor logsumexp = make_tensor({b, h, n}, {n * h, 1, h}, statistics, device);
  Recorder::get(device).record(op, args, {out, logsumexp}, {}, std::nullopt);
  const auto nothing = [&](c10::ScalarType dtype) { return make_contiguous_tensor({0}, dtype, device); };
  return {out,         logsumexp,           nothing(c10::kInt),  nothing(c10::kInt),          n,
          key.size(2), nothing(c10::kLong), nothing(c10::kLong), nothing(query.scalar_type())};
}

Gradients backward(const Tensor& grad, const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& bias,
                   std::array<bool, 4> mask, const Tensor& out, const Tensor& logsumexp, const Tensor&, const Tensor&,
                   // NOLINTNEXTLINE(performance-unnecessary-value-param): the schema's types
                   c10::SymInt, c10::SymInt, double dropout, bool causal, const Tensor&, const Tensor&,
                   std::optional<double> scale) {
  TORCH_CHECK(
      !mask[3],
      "remote: fused attention has no gradient for the mask; scaled_dot_product_attention chooses another backend");
  const ir::OpDesc& op = ir::op_desc(ir::ops::remote_attention_backward);
  const IValue args[] = {grad,   query, key, value, out, logsumexp, bias.defined() ? IValue(bias) : IValue(),
                         causal, scale};
  const c10::DeviceIndex device = operand_device(op, args);
  const auto like = [&](const Tensor& t) {
    return heads_tensor(t.size(0), t.size(1), t.size(2), t.size(3), t.scalar_type(), device);
  };
  const Tensor grad_query = like(query), grad_key = like(key), grad_value = like(value);
  Recorder::get(device).record(op, args, {grad_query, grad_key, grad_value}, {}, std::nullopt);
  return {grad_query, grad_key, grad_value, Tensor()};
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("_fused_sdp_choice", &choose);
  library.impl("_scaled_dot_product_fused_attention_overrideable", &forward);
  library.impl("_scaled_dot_product_fused_attention_overrideable_backward", &backward);
}

// -- the gradient's derivatives
// ------------------------------------------------------------------------------------------------------

// Expands keys or values [b, h, n, d] to `heads` heads, of which consecutive ones share keys or values.
Tensor for_heads(const Tensor& shared, int64_t heads) {
  if (shared.size(1) == heads) return shared;
  return shared.unsqueeze(2).expand({-1, -1, heads / shared.size(1), -1, -1}).flatten(1, 2);
}

// Sums the gradient over the heads that share keys or values.
Tensor of_shared(const Tensor& gradient, const Tensor& shared) {
  const int64_t heads = shared.size(1), each = gradient.size(1) / heads;
  if (each == 1) return gradient;
  return gradient.unflatten(1, {heads, each}).sum(2);
}

// The gradients of softmax(query key^T * factor + bias) value, composed of differentiable ops.
Gradients composite(const Tensor& grad, const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& bias,
                    bool causal, std::optional<double> scale) {
  const auto type = query.scalar_type();
  const auto wide = type == at::kHalf || type == at::kBFloat16 ? at::kFloat : type;
  const int64_t heads = query.size(1);
  const Tensor g = grad.to(wide), q = query.to(wide);
  const Tensor k = for_heads(key.to(wide), heads), v = for_heads(value.to(wide), heads);
  const double factor = scale ? *scale : 1 / std::sqrt(static_cast<double>(query.size(3)));
  Tensor scores = q.matmul(k.transpose(2, 3)).mul(factor);
  if (bias.defined()) scores = scores.add(bias);
  if (causal) {
    const Tensor seen = at::ones_symint({query.sym_size(2), key.sym_size(2)}, query.options().dtype(at::kBool)).tril();
    scores = scores.masked_fill(seen.logical_not(), -std::numeric_limits<double>::infinity());
  }
  const Tensor weights = bias.defined() ? at::_safe_softmax(scores, -1) : scores.softmax(-1);
  const Tensor grad_weights = g.matmul(v.transpose(2, 3));
  const Tensor grad_scores = weights.mul(grad_weights.sub(grad_weights.mul(weights).sum(-1, true))).mul(factor);
  return {grad_scores.matmul(k).to(type), of_shared(grad_scores.transpose(2, 3).matmul(q), key).to(type),
          of_shared(weights.transpose(2, 3).matmul(g), value).to(type), Tensor()};
}

// Calls the fused op, or the composite if a derivative of the result may be needed.
Gradients differentiable_backward(const Tensor& grad, const Tensor& query, const Tensor& key, const Tensor& value,
                                  const Tensor& bias, std::array<bool, 4> mask, const Tensor& out,
                                  const Tensor& logsumexp, const Tensor& cum_q, const Tensor& cum_k, c10::SymInt max_q,
                                  c10::SymInt max_k, double dropout, bool causal, const Tensor& seed,
                                  const Tensor& offset, std::optional<double> scale) {
  bool wanted = false;
  for (const Tensor* t : {&grad, &query, &key, &value}) {
    wanted = wanted || (c10::GradMode::is_enabled() && t->requires_grad()) || t->_fw_grad(/*level=*/0).defined();
  }
  if (wanted) return composite(grad, query, key, value, bias, causal, scale);
  const at::AutoDispatchBelowADInplaceOrView guard;
  return at::_scaled_dot_product_fused_attention_overrideable_backward_symint(
      grad, query, key, value, bias, mask, out, logsumexp, cum_q, cum_k, std::move(max_q), std::move(max_k), dropout,
      causal, seed, offset, scale);
}

TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, library) {
  library.impl("_scaled_dot_product_fused_attention_overrideable_backward", &differentiable_backward);
}

// -- torch.func.vmap: its dim becomes part of the batch
// ------------------------------------------------------------------------------------------------------

class Batch {
 public:
  explicit Batch(std::initializer_list<const Tensor*> operands) {
    const auto layer = at::functorch::maybeCurrentDynamicLayer();
    TORCH_CHECK(layer.has_value(), "remote: a tensor of torch.func.vmap was used outside of it");
    level_ = layer->layerId();
    for (const Tensor* operand : operands) {
      const auto [tensor, dim] = at::functorch::unwrapTensorAtLevel(*operand, level_);
      if (dim.has_value()) size_ = tensor.sym_size(*dim);
    }
  }

  // Turns [b, ...] of each sample into [samples * b, ...].
  Tensor fold(const Tensor& operand) const {
    if (!operand.defined()) return operand;
    const auto [tensor, dim] = at::functorch::unwrapTensorAtLevel(operand, level_);
    return dim.has_value() ? tensor.movedim(*dim, 0).flatten(0, 1) : repeat(tensor.unsqueeze(0)).flatten(0, 1);
  }

  // The same for a bias of the scores: [n, m], or [b or 1, h or 1, n, m].
  Tensor fold_bias(const Tensor& operand, const c10::SymInt& b) const {
    if (!operand.defined()) return operand;
    const auto [tensor, dim] = at::functorch::unwrapTensorAtLevel(operand, level_);
    if (!dim.has_value() && (tensor.dim() == 2 || tensor.sym_size(0) == 1)) return tensor;
    Tensor all = dim.has_value() ? tensor.movedim(*dim, 0) : repeat(tensor.unsqueeze(0));
    if (all.dim() == 3) all = all.unsqueeze(1).unsqueeze(1);
    c10::SymDimVector sizes(all.sym_sizes().begin(), all.sym_sizes().end());
    sizes[1] = b;
    return all.expand_symint(sizes).flatten(0, 1);
  }

  Tensor unfold(const Tensor& result) const {
    if (!result.defined()) return result;
    return at::functorch::makeBatched(result.unflatten_symint(0, {size_, c10::SymInt(-1)}), 0, level_);
  }

 private:
  Tensor repeat(const Tensor& one) const {
    c10::SymDimVector sizes(one.sym_sizes().begin(), one.sym_sizes().end());
    sizes[0] = size_;
    return one.expand_symint(sizes);
  }

  int64_t level_;
  c10::SymInt size_ = 1;
};

Results vmap_forward(const Tensor& query, const Tensor& key, const Tensor& value, const OptionalTensor& bias,
                     double dropout, bool causal, bool debug, std::optional<double> scale) {
  const c10::impl::ExcludeDispatchKeyGuard guard(c10::DispatchKey::FuncTorchBatched);
  const Tensor mask = bias.value_or(Tensor());
  const c10::SymInt b = query.sym_size(0);
  const Batch batch({&query, &key, &value, &mask});
  const Tensor folded = batch.fold_bias(mask, b);
  auto results = at::_scaled_dot_product_fused_attention_overrideable(
      batch.fold(query), batch.fold(key), batch.fold(value), folded.defined() ? OptionalTensor(folded) : std::nullopt,
      dropout, causal, debug, scale);
  std::get<0>(results) = batch.unfold(std::get<0>(results));
  std::get<1>(results) = batch.unfold(std::get<1>(results));
  return results;
}

Gradients vmap_backward(const Tensor& grad, const Tensor& query, const Tensor& key, const Tensor& value,
                        const Tensor& bias, std::array<bool, 4> mask, const Tensor& out, const Tensor& logsumexp,
                        const Tensor& cum_q, const Tensor& cum_k, c10::SymInt max_q, c10::SymInt max_k, double dropout,
                        bool causal, const Tensor& seed, const Tensor& offset, std::optional<double> scale) {
  const c10::impl::ExcludeDispatchKeyGuard guard(c10::DispatchKey::FuncTorchBatched);
  const c10::SymInt b = query.sym_size(0);
  const Batch batch({&grad, &query, &key, &value, &bias, &out, &logsumexp});
  const auto [grad_query, grad_key, grad_value, none] =
      at::_scaled_dot_product_fused_attention_overrideable_backward_symint(
          batch.fold(grad), batch.fold(query), batch.fold(key), batch.fold(value), batch.fold_bias(bias, b), mask,
          batch.fold(out), batch.fold(logsumexp), cum_q, cum_k, std::move(max_q), std::move(max_k), dropout, causal,
          seed, offset, scale);
  return {batch.unfold(grad_query), batch.unfold(grad_key), batch.unfold(grad_value), none};
}

TORCH_LIBRARY_IMPL(aten, FuncTorchBatched, library) {
  library.impl("_scaled_dot_product_fused_attention_overrideable", &vmap_forward);
  library.impl("_scaled_dot_product_fused_attention_overrideable_backward", &vmap_backward);
}

}  // namespace
}  // namespace torch_remote::frontend

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &torch_remote::frontend::choose)
}  // namespace at::native
