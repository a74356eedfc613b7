#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <string>
#include <vector>

#include "ir/status.h"
#include "worker/targets/cuda/dnn/cudnn.h"

// Attention and its gradients as cuDNN graphs. They use the operation patterns that cuDNN's attention engines
// recognize.
namespace torch_remote::worker::cuda {

enum class AttentionPass : uint8_t { kForward, kBackward };

// One call, without addresses and the scale. Tensors have dims [batch, head, row, element]. A row's elements are
// contiguous, and rows begin at multiples of 16 bytes. Groups of heads / key_heads query heads share keys and values.
struct AttentionProblem {
  using Strides = std::array<int64_t, 4>;

  AttentionPass pass = AttentionPass::kForward;
  dnn::Type type = dnn::Type::kFloat16;
  bool causal = false;         // Query i attends to keys 0 to i.
  bool deterministic = false;  // Results must be bitwise reproducible.
  bool tune = false;           // The fastest algorithm is found by timing. Not together with `deterministic`.
  int64_t batch = 1, heads = 1, key_heads = 1, queries = 1, keys = 1, size = 8, value_size = 8;
  Strides query = {}, key = {}, value = {}, out = {};
  Strides grad = {}, grad_query = {}, grad_key = {}, grad_value = {};  // backward
  // The bias added to scores is [bias_batch, bias_heads, queries, keys]. bias_batch and bias_heads are 1 or the full
  // size; without a bias they are 0. The row stride is bias_row elements; the outer dims have no gaps.
  int64_t bias_batch = 0, bias_heads = 0, bias_row = 0;

  auto operator<=>(const AttentionProblem&) const = default;
  bool has_bias() const { return bias_batch != 0; }
  // Text that identifies the problem in the choice file, without spaces. It has everything that a plan depends on,
  // except the machine.
  std::string key_of() const;
};

// Strides of contiguous tensors.
AttentionProblem::Strides packed_heads(int64_t heads, int64_t rows, int64_t elements);

// The graphs' tensors that have memory or are numbers on the host.
enum class AttentionId : uint8_t {
  kQuery = 1,
  kKey,
  kValue,
  kOut,
  kLogSumExp,  // f32, [batch, head, row], contiguous.
  kBias,
  kGrad,
  kGradQuery,
  kGradKey,
  kGradValue,
  kScale,     // f32: scores are query * key^T times this.
  kMasked,    // f32: the score of a masked key.
  kOne,       // f32
  kQuerySum,  // Backward: f32, sizes of queries, contiguous.
  kDelta,     // Backward: f32, [batch, head, row], contiguous.
};

// Builds the graph. `made` receives its descriptor and those of everything in it.
Status describe_attention(const dnn::Table& table, dnn::Handle handle, const AttentionProblem& problem,
                          std::vector<dnn::Descriptor>* made, dnn::Descriptor* graph);

// Whether the gradient of queries is accumulated in scratch memory (kQuerySum), in any order.
bool accumulates_query_gradient(const AttentionProblem& problem);

}  // namespace torch_remote::worker::cuda
