#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <string>
#include <vector>

#include "ir/status.h"
#include "worker/targets/cuda/dnn/cudnn.h"

// Attention and its gradients as graphs of cuDNN's, made of the operations that its engines for attention look for.
namespace torch_remote::worker::cuda {

enum class AttentionPass : uint8_t { kForward, kBackward };

// A call, but for addresses and the scale. Tensors have dims [batch, head, row, element]; elements of a row lie side by
// side, rows begin at multiples of 16 bytes. Of the heads of queries, heads / key_heads have the same keys and values.
struct AttentionProblem {
  using Strides = std::array<int64_t, 4>;

  AttentionPass pass = AttentionPass::kForward;
  dnn::Type type = dnn::Type::kFloat16;
  bool causal = false;         // query i sees keys 0 to i
  bool deterministic = false;  // sums come out the same each time
  int64_t batch = 1, heads = 1, key_heads = 1, queries = 1, keys = 1, size = 8, value_size = 8;
  Strides query = {}, key = {}, value = {}, out = {};
  Strides grad = {}, grad_query = {}, grad_key = {}, grad_value = {};  // backward
  // What is added to scores, [bias_batch, bias_heads, queries, keys], each of the first two 1 or all; 0: nothing is.
  // From row to row there are bias_row elements, and no gaps else.
  int64_t bias_batch = 0, bias_heads = 0, bias_row = 0;

  auto operator<=>(const AttentionProblem&) const = default;
  bool has_bias() const { return bias_batch != 0; }
  // All that a plan depends on but for the machine, in a word.
  std::string key_of() const;
};

// Strides of tensors without gaps.
AttentionProblem::Strides packed_heads(int64_t heads, int64_t rows, int64_t elements);

// Tensors of the graphs that have memory, or are numbers of the host's.
enum class AttentionId : uint8_t {
  kQuery = 1,
  kKey,
  kValue,
  kOut,
  kLogSumExp,  // f32, [batch, head, row] without gaps
  kBias,
  kGrad,
  kGradQuery,
  kGradKey,
  kGradValue,
  kScale,     // f32: scores are products times this
  kNothing,   // f32: the score of what is not seen
  kOne,       // f32
  kQuerySum,  // backward: f32, as large as queries, without gaps
  kDelta,     // likewise: f32, [batch, head, row]
};

// The graph's descriptor, which is among those of `made` then, as is all that it is made of.
Status describe_attention(const dnn::Table& table, dnn::Handle handle, const AttentionProblem& problem,
                          std::vector<dnn::Descriptor>* made, dnn::Descriptor* graph);

// Whether the gradient of queries is summed up in memory of our own (kQuerySum), in any order.
bool sums_queries_apart(const AttentionProblem& problem);

}  // namespace torch_remote::worker::cuda
