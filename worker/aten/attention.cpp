#include <ATen/TensorOperators.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>

#include <cmath>
#include <limits>
#include <optional>

#include "worker/aten/special.h"

// Attention as it is recorded for any device (`_scaled_dot_product_fused_attention_overrideable`), on the CPU: torch's
// flash kernel where that can take it, else the formula itself. Both give the same log-sum-exp, so that forward and
// backward may take different ways. Attention with dropout is recorded as the ops it consists of, so it does not come
// here.
namespace torch_remote::worker::aten {
namespace {

struct Attention {
  at::Tensor query, key, value;
  std::optional<at::Tensor> bias;  // added to the scores
  bool causal = false;
  std::optional<double> scale;

  bool flash() const {
    const auto type = query.scalar_type();
    return query.dim() == 4 && key.dim() == 4 && value.dim() == 4 &&
           (type == at::kFloat || type == at::kDouble || type == at::kBFloat16 || type == at::kHalf) &&
           key.scalar_type() == type && value.scalar_type() == type && query.size(3) == key.size(3) &&
           query.size(3) == value.size(3) && query.size(1) == key.size(1) && query.size(1) == value.size(1) &&
           query.size(0) == key.size(0) && query.size(0) == value.size(0) && query.numel() != 0 && key.numel() != 0 &&
           query.stride(3) == 1 && key.stride(3) == 1 && value.stride(3) == 1 &&
           (!bias || ((bias->dim() == 2 || bias->dim() == 4) && bias->scalar_type() == type));
  }
  double factor() const { return scale ? *scale : 1 / std::sqrt(static_cast<double>(query.size(-1))); }
};

at::Tensor compute_type(const at::Tensor& tensor) {
  const auto type = tensor.scalar_type();
  return type == at::kHalf || type == at::kBFloat16 ? tensor.to(at::kFloat) : tensor;
}

// Heads of keys and values repeated for grouped queries.
at::Tensor repeat_heads(const at::Tensor& tensor, const at::Tensor& query) {
  if (tensor.dim() < 3 || tensor.size(-3) == query.size(-3)) return tensor;
  TORCH_CHECK(tensor.size(-3) != 0 && query.size(-3) % tensor.size(-3) == 0,
              "Number of heads in key and value must divide the number of heads in query, but got ", tensor.size(-3),
              " and ", query.size(-3));
  return tensor.repeat_interleave(query.size(-3) / tensor.size(-3), -3);
}

at::Tensor sum_heads(const at::Tensor& gradient, const at::Tensor& like) {
  if (gradient.dim() < 3 || gradient.size(-3) == like.size(-3)) return gradient;
  const int64_t groups = like.size(-3);
  return gradient.unflatten(-3, {groups, gradient.size(-3) / groups}).sum(-3);
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

// Rows without any key give zeros.
at::Tensor probabilities(const at::Tensor& scores, const at::Tensor& logsumexp) {
  const at::Tensor finite = logsumexp.masked_fill(logsumexp.isneginf(), 0);
  return (scores - finite.unsqueeze(-1)).exp_();
}

void store(const at::Tensor& result, const at::Tensor& value) {
  if (result.defined()) result.copy_(value);
}

void forward(const Attention& a, const at::Tensor& output, const at::Tensor& logsumexp) {
  if (a.flash()) {
    const auto [out, lse] =
        at::_scaled_dot_product_flash_attention_for_cpu(a.query, a.key, a.value, 0.0, a.causal, a.bias, a.scale);
    store(output, out);
    store(logsumexp, lse);
    return;
  }
  const at::Tensor query = compute_type(a.query);
  const at::Tensor all = scores(a, query, compute_type(repeat_heads(a.key, a.query)));
  const at::Tensor lse = all.logsumexp(-1);
  store(output, at::matmul(probabilities(all, lse), compute_type(repeat_heads(a.value, a.query))));
  store(logsumexp, lse);
}

struct Gradients {
  at::Tensor query, key, value, bias;  // undefined: not wanted
};

void backward(const Attention& a, const at::Tensor& gradient, const at::Tensor& output, const at::Tensor& logsumexp,
              const Gradients& gradients) {
  if (a.flash() && !gradients.bias.defined()) {
    const auto [query, key, value] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
        gradient, a.query, a.key, a.value, output, logsumexp, 0.0, a.causal, a.bias, a.scale);
    store(gradients.query, query);
    store(gradients.key, key);
    store(gradients.value, value);
    return;
  }
  const at::Tensor query = compute_type(a.query);
  const at::Tensor key = compute_type(repeat_heads(a.key, a.query));
  const at::Tensor value = compute_type(repeat_heads(a.value, a.query));
  const at::Tensor grad = compute_type(gradient);
  const at::Tensor weights = probabilities(scores(a, query, key), logsumexp.to(query.scalar_type()));
  if (gradients.value.defined()) {
    store(gradients.value, sum_heads(at::matmul(weights.transpose(-2, -1), grad), a.value));
  }
  const at::Tensor grad_weights = at::matmul(grad, value.transpose(-2, -1));
  const at::Tensor delta = (grad * compute_type(output)).sum(-1, /*keepdim=*/true);
  const at::Tensor grad_scores = weights * (grad_weights - delta);
  if (gradients.query.defined()) store(gradients.query, at::matmul(grad_scores, key) * a.factor());
  if (gradients.key.defined()) {
    store(gradients.key, sum_heads(at::matmul(grad_scores.transpose(-2, -1), query), a.key) * a.factor());
  }
  if (gradients.bias.defined()) store(gradients.bias, grad_scores.sum_to_size(gradients.bias.sizes()));
}

std::optional<at::Tensor> optional_tensor(const c10::IValue& value) {
  if (value.isNone() || !value.toTensor().defined()) return std::nullopt;
  return value.toTensor();
}

std::optional<double> optional_double(const c10::IValue& value) {
  return value.isNone() ? std::nullopt : std::optional(value.toDouble());
}

void check_no_dropout(const c10::IValue& p) {
  TORCH_CHECK(p.toDouble() == 0, "remote: fused attention does not drop out, but got dropout_p=", p.toDouble());
}

// (query, key, value, attn_bias, dropout_p, is_causal, return_debug_mask, scale) -> (output, logsumexp, cum_seq_q,
// cum_seq_k, max_q, max_k, philox_seed, philox_offset, debug_attn_mask)
void run_forward(const SpecialCall& call) {
  Attention a;
  a.query = call.args[0].toTensor();
  a.key = call.args[1].toTensor();
  a.value = call.args[2].toTensor();
  a.bias = optional_tensor(call.args[3]);
  check_no_dropout(call.args[4]);
  a.causal = call.args[5].toBool();
  a.scale = optional_double(call.args[7]);
  forward(a, call.results[0], call.results[1]);
  // The other results mean nothing here: cumulated lengths, which only sequences of different lengths have, the state
  // of a dropout that does not happen, and the debug mask, which is not offered.
  for (const size_t unused : {2, 3, 6, 7, 8}) {
    if (call.results[unused].defined()) call.results[unused].zero_();
  }
}

// (grad_out, query, key, value, attn_bias, grad_input_mask, out, logsumexp, cum_seq_q, cum_seq_k, max_q, max_k,
// dropout_p, is_causal, philox_seed, philox_offset, scale) -> (grad_query, grad_key, grad_value, grad_attn_bias)
void run_backward(const SpecialCall& call) {
  Attention a;
  a.query = call.args[1].toTensor();
  a.key = call.args[2].toTensor();
  a.value = call.args[3].toTensor();
  a.bias = optional_tensor(call.args[4]);
  check_no_dropout(call.args[12]);
  a.causal = call.args[13].toBool();
  a.scale = optional_double(call.args[16]);
  backward(a, call.args[0].toTensor(), call.args[6].toTensor(), call.args[7].toTensor(),
           {call.results[0], call.results[1], call.results[2], call.results[3]});
}

}  // namespace

Special find_attention(std::string_view name) {
  if (name == "aten::_scaled_dot_product_fused_attention_overrideable") return run_forward;
  if (name == "aten::_scaled_dot_product_fused_attention_overrideable_backward") return run_backward;
  return nullptr;
}

}  // namespace torch_remote::worker::aten
