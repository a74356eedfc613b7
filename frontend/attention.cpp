#include <ATen/ATen.h>
#include <ATen/native/DispatchStub.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>
#include <torch/library.h>

#include "frontend/recorder.h"
#include "frontend/tensor.h"
#include "ir/op_table_generated.h"

// scaled_dot_product_attention, kept whole: recorded as the flash attention op with a log-sum-exp for the backward
// pass. Heads that share keys and values (grouped queries) get copies of them. What that op does not take (dropout, a
// mask that needs a gradient, unequal head sizes) goes through torch's composite.
namespace torch_remote::frontend {
namespace {

using at::Tensor;
using c10::IValue;

// Sizes may be symbols (torch.compile); one that only a guard could compare is taken for different.
bool same(const c10::SymInt& a, const c10::SymInt& b) { return TORCH_GUARD_OR_FALSE(a.sym_eq(b)); }
bool same_size(const Tensor& a, int64_t i, const Tensor& b, int64_t j) { return same(a.sym_size(i), b.sym_size(j)); }
bool spans(const c10::SymInt& size, const c10::SymInt& wanted) { return same(size, wanted) || same(size, 1); }
bool is_empty(const Tensor& tensor) { return TORCH_GUARD_OR_FALSE(tensor.sym_numel().sym_eq(0)); }

bool takes_mask(const std::optional<Tensor>& mask, const Tensor& query, const Tensor& key) {
  if (!mask.has_value() || !mask->defined()) return true;
  if (mask->requires_grad() || !is_remote(*mask)) return false;
  if (mask->scalar_type() != c10::kBool && mask->scalar_type() != query.scalar_type()) return false;
  if (mask->dim() != 2 && mask->dim() != 4) return false;
  return spans(mask->sym_size(-2), query.sym_size(-2)) && spans(mask->sym_size(-1), key.sym_size(-2)) &&
         (mask->dim() == 2 ||
          (spans(mask->sym_size(0), query.sym_size(0)) && spans(mask->sym_size(1), query.sym_size(1))));
}

// As many heads for keys, or for as many queries each. torch.compile takes shared ones apart itself.
bool heads_match(const Tensor& query, const Tensor& key, bool grouped) {
  if (!grouped || query.key_set().has(c10::DispatchKey::Python)) return !grouped && same_size(query, 1, key, 1);
  return key.size(1) > 0 && query.size(1) % key.size(1) == 0;
}

int64_t choose(const Tensor& query, const Tensor& key, const Tensor& value, const std::optional<Tensor>& mask,
               double dropout, bool causal, std::optional<double>, bool grouped) {
  const c10::ScalarType dtype = query.scalar_type();
  const bool floating = dtype == c10::kFloat || dtype == c10::kDouble || dtype == c10::kBFloat16 || dtype == c10::kHalf;
  bool flash = floating && dropout == 0.0 && query.dim() == 4 && key.dim() == 4 && value.dim() == 4 &&
               key.scalar_type() == dtype && value.scalar_type() == dtype && !(causal && mask.has_value());
  flash = flash && same_size(query, 3, key, 3) && same_size(query, 3, value, 3) && heads_match(query, key, grouped) &&
          same_size(key, 1, value, 1) && same_size(query, 0, key, 0) && same_size(key, 0, value, 0) &&
          same_size(key, 2, value, 2) && !is_empty(query) && !is_empty(key) && takes_mask(mask, query, key);
  for (const Tensor* t : {&query, &key, &value}) flash = flash && same(t->sym_stride(3), 1);
  return static_cast<int64_t>(flash ? sdp::SDPBackend::overrideable : sdp::SDPBackend::math);
}

// [b, h, n, d] over memory laid out as [b, n, h, d].
Tensor heads_tensor(int64_t b, int64_t h, int64_t n, int64_t d, c10::ScalarType dtype, c10::DeviceIndex device) {
  return make_tensor({b, h, n, d}, {n * h * d, d, h * d, 1}, dtype, device);
}

// Keys or values for each of so many heads; consecutive ones share theirs.
Tensor for_heads(const Tensor& shared, int64_t heads) {
  const int64_t b = shared.size(0), h = shared.size(1), n = shared.size(2), d = shared.size(3);
  if (h == heads) return shared;
  return shared.unsqueeze(2).expand({b, h, heads / h, n, d}).reshape({b, heads, n, d});
}

// The gradient of what heads share.
Tensor of_shared(const Tensor& gradient, const Tensor& shared) {
  const int64_t heads = shared.size(1), each = gradient.size(1) / heads;
  if (each == 1) return gradient;
  return gradient.unflatten(1, {heads, each}).sum(2);
}

std::tuple<Tensor, Tensor, Tensor, Tensor, c10::SymInt, c10::SymInt, Tensor, Tensor, Tensor> forward(
    const Tensor& query, const Tensor& shared_key, const Tensor& shared_value, const std::optional<Tensor>& bias,
    double dropout, bool causal, bool, std::optional<double> scale) {
  TORCH_CHECK(dropout == 0.0,
              "remote: fused attention has no dropout; scaled_dot_product_attention chooses another way");
  const c10::DeviceIndex device = query.device().index();
  const int64_t b = query.size(0), h = query.size(1), n = query.size(2);
  const Tensor key = for_heads(shared_key, h), value = for_heads(shared_value, h);
  const Tensor out = at::empty_like(query);
  const auto statistics = query.scalar_type() == c10::kDouble ? c10::kDouble : c10::kFloat;
  const Tensor logsumexp = make_tensor({b, h, n}, {n * h, 1, h}, statistics, device);
  const IValue args[] = {query, key, value, dropout, causal, bias, scale};
  Recorder::get(device).record(ir::op_desc(ir::ops::aten__scaled_dot_product_flash_attention_for_cpu), args,
                               {out, logsumexp}, {}, std::nullopt);
  const auto nothing = [&](c10::ScalarType dtype) { return make_contiguous_tensor({0}, dtype, device); };
  return {out,         logsumexp,           nothing(c10::kInt),  nothing(c10::kInt),          n,
          key.size(2), nothing(c10::kLong), nothing(c10::kLong), nothing(query.scalar_type())};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> backward(const Tensor& grad, const Tensor& query, const Tensor& shared_key,
                                                    const Tensor& shared_value, const Tensor& bias,
                                                    std::array<bool, 4> mask, const Tensor& out,
                                                    const Tensor& logsumexp, const Tensor&, const Tensor&, c10::SymInt,
                                                    c10::SymInt, double dropout, bool causal, const Tensor&,
                                                    const Tensor&, std::optional<double> scale) {
  TORCH_CHECK(!mask[3],
              "remote: fused attention has no gradient for the mask; scaled_dot_product_attention chooses another way");
  const c10::DeviceIndex device = query.device().index();
  const Tensor key = for_heads(shared_key, query.size(1)), value = for_heads(shared_value, query.size(1));
  const auto like = [&](const Tensor& t) {
    return heads_tensor(t.size(0), t.size(1), t.size(2), t.size(3), t.scalar_type(), device);
  };
  const Tensor grad_query = like(query), grad_key = like(key), grad_value = like(value);
  const IValue args[] = {
      grad, query, key, value, out, logsumexp, dropout, causal, bias.defined() ? IValue(bias) : IValue(), scale};
  Recorder::get(device).record(ir::op_desc(ir::ops::aten__scaled_dot_product_flash_attention_for_cpu_backward), args,
                               {grad_query, grad_key, grad_value}, {}, std::nullopt);
  return {grad_query, of_shared(grad_key, shared_key), of_shared(grad_value, shared_value), Tensor()};
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("_fused_sdp_choice", &choose);
  library.impl("_scaled_dot_product_fused_attention_overrideable", &forward);
  library.impl("_scaled_dot_product_fused_attention_overrideable_backward", &backward);
}

}  // namespace
}  // namespace torch_remote::frontend

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &torch_remote::frontend::choose)
}  // namespace at::native
