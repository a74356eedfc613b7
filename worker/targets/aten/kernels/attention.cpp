#include <ATen/TensorOperators.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>

#include <cmath>
#include <limits>
#include <optional>

#include "worker/targets/aten/kernels/special.h"
#include "worker/targets/aten/kernels/special_generated.h"

// `remote::attention` on the CPU: torch's flash kernel where it supports the operands, otherwise the formula itself.
// Both return the same log-sum-exp, so forward and backward may use different implementations. Attention with dropout
// is recorded as the ops that it consists of, so it never reaches this file.
namespace torch_remote::worker::aten {
namespace {

// Repeats the heads of keys or values, [b, h, n, d], so that each query head has its own. Consecutive query heads share
// one.
at::Tensor repeat_heads(const at::Tensor& shared, const at::Tensor& query) {
  const int64_t heads = query.size(1), given = shared.size(1);
  if (given == heads) return shared;
  TORCH_CHECK(given != 0 && heads % given == 0,
              "Number of heads in key and value must divide the number of heads in query, but got ", given, " and ",
              heads);
  return shared.unsqueeze(2).expand({-1, -1, heads / given, -1, -1}).flatten(1, 2);
}

// Sums a gradient over the query heads that share a key or value head.
at::Tensor sum_heads(const at::Tensor& gradient, const at::Tensor& shared) {
  const int64_t given = shared.size(1), each = gradient.size(1) / given;
  return each == 1 ? gradient : gradient.unflatten(1, {given, each}).sum(2);
}

struct Attention {
  at::Tensor query, key, value;    // keys and values may have fewer heads
  std::optional<at::Tensor> bias;  // added to the scores
  bool causal = false;
  std::optional<double> scale;

  Attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const c10::IValue& given_bias,
            const c10::IValue& is_causal, const c10::IValue& given_scale)
      : query(q), key(k), value(v), causal(is_causal.toBool()) {
    TORCH_CHECK(q.dim() == 4 && k.dim() == 4 && v.dim() == 4,
                "remote: attention takes a query, keys and values of 4 dimensions, but got ", q.sizes(), ", ",
                k.sizes(), " and ", v.sizes());
    if (!given_bias.isNone() && given_bias.toTensor().defined()) bias = given_bias.toTensor();
    if (!given_scale.isNone()) scale = given_scale.toDouble();
  }

  bool flash() const {
    const auto type = query.scalar_type();
    return (type == at::kFloat || type == at::kDouble || type == at::kBFloat16 || type == at::kHalf) &&
           key.scalar_type() == type && value.scalar_type() == type && query.size(3) == key.size(3) &&
           query.size(3) == value.size(3) && key.size(1) == value.size(1) && key.size(1) != 0 &&
           query.size(1) % key.size(1) == 0 && query.size(0) == key.size(0) && query.size(0) == value.size(0) &&
           query.numel() != 0 && key.numel() != 0 && query.stride(3) == 1 && key.stride(3) == 1 &&
           value.stride(3) == 1 && (!bias || ((bias->dim() == 2 || bias->dim() == 4) && bias->scalar_type() == type));
  }
  double factor() const { return scale ? *scale : 1 / std::sqrt(static_cast<double>(query.size(-1))); }
};

at::Tensor compute_type(const at::Tensor& tensor) {
  const auto type = tensor.scalar_type();
  return type == at::kHalf || type == at::kBFloat16 ? tensor.to(at::kFloat) : tensor;
}

at::Tensor scores(const Attention& a, const at::Tensor& query, const at::Tensor& key) {
  at::Tensor result = at::matmul(query * a.factor(), key.transpose(-2, -1));
  if (a.bias) {
    if (a.bias->scalar_type() == at::kBool) {
      result.masked_fill_(a.bias->logical_not(), -std::numeric_limits<double>::infinity());
    } else {
      result.add_(*a.bias);
    }
  }
  if (a.causal) {
    const at::Tensor seen = at::ones({result.size(-2), result.size(-1)}, result.options().dtype(at::kBool)).tril();
    result.masked_fill_(seen.logical_not(), -std::numeric_limits<double>::infinity());
  }
  return result;
}

// A row without any key gives zeros.
at::Tensor probabilities(const at::Tensor& scores, const at::Tensor& logsumexp) {
  const at::Tensor finite = logsumexp.masked_fill(logsumexp.isneginf(), 0);
  return (scores - finite.unsqueeze(-1)).exp_();
}

void copy_wanted(const at::Tensor& result, const at::Tensor& value) {
  if (result.defined()) result.copy_(value);
}

}  // namespace

// (query, key, value, bias, is_causal, scale) -> (output, logsumexp)
void attention_kernels::forward(const SpecialCall& call) {
  const auto& args = call.args;
  const Attention a(args[0].toTensor(), args[1].toTensor(), args[2].toTensor(), args[3], args[4], args[5]);
  if (a.flash()) {
    const auto [out, lse] =
        at::_scaled_dot_product_flash_attention_for_cpu(a.query, a.key, a.value, 0.0, a.causal, a.bias, a.scale);
    copy_wanted(call.results[0], out);
    copy_wanted(call.results[1], lse);
    return;
  }
  const at::Tensor all = scores(a, compute_type(a.query), compute_type(repeat_heads(a.key, a.query)));
  const at::Tensor lse = all.logsumexp(-1);
  copy_wanted(call.results[0], at::matmul(probabilities(all, lse), compute_type(repeat_heads(a.value, a.query))));
  copy_wanted(call.results[1], lse);
}

// (grad, query, key, value, out, logsumexp, bias, is_causal, scale) -> (grad_query, grad_key, grad_value)
void attention_kernels::backward(const SpecialCall& call) {
  const auto& args = call.args;
  const at::Tensor gradient = args[0].toTensor(), output = args[4].toTensor(), logsumexp = args[5].toTensor();
  const Attention a(args[1].toTensor(), args[2].toTensor(), args[3].toTensor(), args[6], args[7], args[8]);
  if (a.flash()) {
    const auto [grad_query, grad_key, grad_value] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
        gradient, a.query, a.key, a.value, output, logsumexp, 0.0, a.causal, a.bias, a.scale);
    copy_wanted(call.results[0], grad_query);
    copy_wanted(call.results[1], grad_key);
    copy_wanted(call.results[2], grad_value);
    return;
  }
  const at::Tensor query = compute_type(a.query), grad = compute_type(gradient);
  const at::Tensor key = compute_type(repeat_heads(a.key, a.query));
  const at::Tensor value = compute_type(repeat_heads(a.value, a.query));
  const at::Tensor weights = probabilities(scores(a, query, key), logsumexp.to(query.scalar_type()));
  if (call.results[2].defined()) {
    copy_wanted(call.results[2], sum_heads(at::matmul(weights.transpose(-2, -1), grad), a.value));
  }
  const at::Tensor grad_weights = at::matmul(grad, value.transpose(-2, -1));
  const at::Tensor delta = (grad * compute_type(output)).sum(-1, /*keepdim=*/true);
  const at::Tensor grad_scores = weights * (grad_weights - delta);
  if (call.results[0].defined()) copy_wanted(call.results[0], at::matmul(grad_scores, key) * a.factor());
  if (call.results[1].defined()) {
    copy_wanted(call.results[1], sum_heads(at::matmul(grad_scores.transpose(-2, -1), query), a.key) * a.factor());
  }
}

}  // namespace torch_remote::worker::aten
