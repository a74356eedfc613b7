#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

// The ops that nn.MultiheadAttention and nn.TransformerEncoderLayer call in eval mode. Each is one op in torch; here it
// is composed of other ops, in eager mode and in graphs of torch.compile.
namespace torch_remote::frontend {

// aten::_native_multi_head_attention. `query`, `key` and `value` have the shape [batch, length, embed_dim], and
// `qkv_weight` has [3 embed_dim, embed_dim]. Elements of the mask that are true (or not zero) are masked out. Its shape
// depends on `mask_type`: 0 [length, length]; 1 [batch, length], over keys; 2 that of the weights. A query whose keys
// are all masked out gets NaN, as on CPU.
// Results: [batch, length, embed_dim], and the attention weights if `need_weights`: [batch, num_head, length, length],
// or their mean over heads.
std::tuple<at::Tensor, at::Tensor> multi_head_attention(const at::Tensor& query, const at::Tensor& key,
                                                        const at::Tensor& value, int64_t embed_dim, int64_t num_head,
                                                        const at::Tensor& qkv_weight, const at::Tensor& qkv_bias,
                                                        const at::Tensor& proj_weight, const at::Tensor& proj_bias,
                                                        const std::optional<at::Tensor>& mask, bool need_weights,
                                                        bool average_attn_weights, std::optional<int64_t> mask_type);

// aten::_transformer_encoder_layer_fwd. `src` has the shape [batch, length, embed_dim].
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
