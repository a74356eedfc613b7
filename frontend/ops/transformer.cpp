#include "frontend/ops/transformer.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/softmax.h>
#include <torch/library.h>

#include <cmath>
#include <limits>

namespace torch_remote::frontend {
namespace {

using at::Tensor;

// [batch, length, embed_dim] to [batch, heads, length, embed_dim / heads].
Tensor heads_of(const Tensor& t, int64_t heads) { return t.unflatten(-1, {heads, -1}).transpose(1, 2); }

// True where the mask excludes a weight. The shape broadcasts to [batch, heads, length, length].
Tensor mask_excluding(const Tensor& mask, std::optional<int64_t> mask_type) {
  TORCH_CHECK(mask_type.has_value(), "Mask Type should be defined");
  TORCH_CHECK(*mask_type >= 0 && *mask_type <= 2,
              "Mask Type should be 0 (src_mask), 1 (src_key_padding_mask), or 2 (default_mask)");
  const int64_t rank = *mask_type == 2 ? 4 : 2;
  TORCH_CHECK(mask.dim() == rank, "remote: a mask of type ", *mask_type, " has ", rank, " dimensions, got ",
              mask.dim());
  const Tensor bools = mask.to(at::kBool);
  return *mask_type == 1 ? bools.unsqueeze(1).unsqueeze(1) : bools;
}

}  // namespace

std::tuple<Tensor, Tensor> multi_head_attention(const Tensor& query, const Tensor& key, const Tensor& value,
                                                int64_t embed_dim, int64_t num_head, const Tensor& qkv_weight,
                                                const Tensor& qkv_bias, const Tensor& proj_weight,
                                                const Tensor& proj_bias, const std::optional<Tensor>& mask,
                                                bool need_weights, bool average_attn_weights,
                                                std::optional<int64_t> mask_type) {
  TORCH_CHECK(query.dim() == 3, "expected 3-D `query`, got ", query.dim(), "-D tensor");
  TORCH_CHECK(query.sym_size(2) == embed_dim, "passed-in embed_dim ", embed_dim, " didn't match last dim of query ",
              query.sym_size(2));
  TORCH_CHECK(key.dim() == 3, "expected 3-D `key`, got ", key.dim(), "-D tensor");
  TORCH_CHECK(value.dim() == 3, "expected 3-D `value`, got ", value.dim(), "-D tensor");
  TORCH_CHECK(query.sym_sizes() == key.sym_sizes() && key.sym_sizes() == value.sym_sizes(),
              "expected `query`/`key`/`value` shapes to match");
  TORCH_CHECK(qkv_weight.dim() == 2, "expected 2-D `qkv_weight`, got ", qkv_weight.dim(), "-D tensor");
  TORCH_CHECK(qkv_weight.sym_size(0) == 3 * embed_dim, "expected `qkv_weight` first dim to be 3x embed_dim");
  TORCH_CHECK(qkv_weight.sym_size(1) == embed_dim, "expected `qkv_weight` second dim to be embed_Dim");
  TORCH_CHECK(qkv_bias.dim() == 1, "expected 1-D `qkv_bias`, got ", qkv_bias.dim(), "-D tensor");
  TORCH_CHECK(qkv_bias.sym_size(0) == 3 * embed_dim, "expected `qkv_bias` first dim to be 3x embed_dim");
  TORCH_CHECK(embed_dim % num_head == 0, "`embed_dim` must divide evenly by `num_heads`");
  if (query.sym_numel() == 0) return {query.clone(), Tensor()};

  std::vector<Tensor> parts;
  if (query.is_same(key) && key.is_same(value)) {
    parts = at::linear(query, qkv_weight, qkv_bias).chunk(3, -1);
  } else {
    const std::vector<Tensor> weights = qkv_weight.chunk(3), biases = qkv_bias.chunk(3);
    parts = {at::linear(query, weights[0], biases[0]), at::linear(key, weights[1], biases[1]),
             at::linear(value, weights[2], biases[2])};
  }
  for (Tensor& part : parts) part = heads_of(part, num_head);
  Tensor weights, attended;
  if (need_weights || mask.has_value()) {
    Tensor scores = at::matmul(parts[0] / std::sqrt(static_cast<double>(embed_dim / num_head)),  //
                               parts[1].transpose(-2, -1));
    if (mask.has_value()) {
      scores = scores.masked_fill(mask_excluding(*mask, mask_type), -std::numeric_limits<double>::infinity());
    }
    weights = at::softmax(scores, -1);
    attended = at::matmul(weights, parts[2]);
  } else {
    attended = at::scaled_dot_product_attention(parts[0], parts[1], parts[2]);
  }
  const Tensor result = at::linear(attended.transpose(1, 2).flatten(2), proj_weight, proj_bias);
  if (!need_weights) return {result, Tensor()};
  return {result, average_attn_weights ? weights.mean(1) : weights};
}

Tensor transformer_encoder_layer(const Tensor& src, int64_t embed_dim, int64_t num_heads, const Tensor& qkv_weight,
                                 const Tensor& qkv_bias, const Tensor& proj_weight, const Tensor& proj_bias,
                                 bool use_gelu, bool norm_first, double eps, const Tensor& norm_weight_1,
                                 const Tensor& norm_bias_1, const Tensor& norm_weight_2, const Tensor& norm_bias_2,
                                 const Tensor& ffn_weight_1, const Tensor& ffn_bias_1, const Tensor& ffn_weight_2,
                                 const Tensor& ffn_bias_2, const std::optional<Tensor>& mask,
                                 std::optional<int64_t> mask_type) {
  const auto norm_1 = [&](const Tensor& x) { return at::layer_norm(x, {embed_dim}, norm_weight_1, norm_bias_1, eps); };
  const auto norm_2 = [&](const Tensor& x) { return at::layer_norm(x, {embed_dim}, norm_weight_2, norm_bias_2, eps); };
  const auto attend = [&](const Tensor& x) {
    return std::get<0>(multi_head_attention(x, x, x, embed_dim, num_heads, qkv_weight, qkv_bias, proj_weight, proj_bias,
                                            mask, /*need_weights=*/false, /*average_attn_weights=*/true, mask_type));
  };
  const auto feed_forward = [&](const Tensor& x) {
    const Tensor inner = at::linear(x, ffn_weight_1, ffn_bias_1);
    return at::linear(use_gelu ? at::gelu(inner) : at::relu(inner), ffn_weight_2, ffn_bias_2);
  };
  if (norm_first) {
    const Tensor attended = attend(norm_1(src)) + src;
    return feed_forward(norm_2(attended)) + attended;
  }
  const Tensor attended = norm_1(attend(src) + src);
  return norm_2(feed_forward(attended) + attended);
}

namespace {

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("_native_multi_head_attention", &multi_head_attention);
  library.impl("_transformer_encoder_layer_fwd", &transformer_encoder_layer);
}

}  // namespace
}  // namespace torch_remote::frontend
