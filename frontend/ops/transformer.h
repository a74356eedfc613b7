#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

// What nn.MultiheadAttention and nn.TransformerEncoderLayer call at rest: one op each in torch, here what they consist
// of, in eager code and in graphs of torch.compile.
namespace torch_remote::frontend {

// aten::_native_multi_head_attention. `query`, `key`, `value`: [batch, length, embed_dim], all of one shape;
// `qkv_weight` [3 embed_dim, embed_dim]. A true (or not zero) element of the mask is left out; its shape by
// `mask_type`: 0 [length, length], 1 [batch, length] of keys, 2 that of the weights. A query of which everything is
// left out gets NaN, as on CPU. Results: [batch, length, embed_dim], and the weights if they are needed: [batch,
// num_head, length, length], or without heads their mean.
std::tuple<at::Tensor, at::Tensor> multi_head_attention(const at::Tensor& query, const at::Tensor& key,
                                                        const at::Tensor& value, int64_t embed_dim, int64_t num_head,
                                                        const at::Tensor& qkv_weight, const at::Tensor& qkv_bias,
                                                        const at::Tensor& proj_weight, const at::Tensor& proj_bias,
                                                        const std::optional<at::Tensor>& mask, bool need_weights,
                                                        bool average_attn_weights, std::optional<int64_t> mask_type);

// aten::_transformer_encoder_layer_fwd. `src`: [batch, length, embed_dim].
at::Tensor transformer_encoder_layer(const at::Tensor& src, int64_t embed_dim, int64_t num_heads,
                                     const at::Tensor& qkv_weight, const at::Tensor& qkv_bias,
                                     const at::Tensor& proj_weight, const at::Tensor& proj_bias, bool use_gelu,
                                     bool norm_first, double eps, const at::Tensor& norm_weight_1,
                                     const at::Tensor& norm_bias_1, const at::Tensor& norm_weight_2,
                                     const at::Tensor& norm_bias_2, const at::Tensor& ffn_weight_1,
                                     const at::Tensor& ffn_bias_1, const at::Tensor& ffn_weight_2,
                                     const at::Tensor& ffn_bias_2, const std::optional<at::Tensor>& mask,
                                     std::optional<int64_t> mask_type);

}  // namespace torch_remote::frontend
