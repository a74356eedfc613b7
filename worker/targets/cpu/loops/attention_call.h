#pragma once

#include <cstddef>
#include <cstdint>

#include "worker/targets/cpu/loops/levels.h"

// Attention by blocks of queries and keys; the full score matrix never exists. The forward pass follows
// FlashAttention-2 (Dao, 2023), with a running maximum and sum per query. The backward pass recomputes the scores.
// Compiled for several instruction sets (attention_loops.h); the caller chooses one.
//
// A task works on one head of keys and values, and on the rows of all query heads that share it. The rows of the first
// of these query heads come first, then those of the second one, and so on; each head has `queries` rows.
namespace torch_remote::worker::kernels {

enum class AttentionType : uint8_t { kNone, kFloat, kBFloat16, kHalf, kBool };

// Element (b, h, i, j) is at data + b * strides[0] + h * strides[1] + i * strides[2] + j * strides[3], in elements.
struct AttentionTensor {
  void* data = nullptr;
  int64_t strides[4] = {0, 0, 0, 0};
};

struct AttentionCall {
  AttentionType type = AttentionType::kFloat;      // of all tensors but bias and logsumexp
  AttentionType bias_type = AttentionType::kNone;  // kBool: true where a key is not masked
  int64_t batch = 0, heads = 0, shared = 1;        // heads: of keys; shared: query heads per key head
  int64_t queries = 0, keys = 0, size = 0, value_size = 0;
  bool causal = false;  // query i attends to keys 0, ..., i
  float scale = 1;
  AttentionTensor query, key, value, bias;
  AttentionTensor out;        // forward writes it, backward reads it
  AttentionTensor logsumexp;  // f32, [batch, query heads, queries]; forward writes it, backward reads it
  // For the backward pass; data is null for a gradient that is not wanted.
  AttentionTensor grad, grad_query, grad_key, grad_value;
};

// How the forward pass is split into tasks: by blocks of query rows and, where this gives few tasks, by pieces of the
// keys, whose results are joined afterwards. The split depends on sizes alone.
struct KeySplit {
  int64_t keys = 0;   // keys per piece
  int64_t count = 1;  // number of pieces
  int64_t rows = 0;   // rows per block
  int64_t blocks = 1;
};

inline constexpr int64_t kAttentionRows = 64;  // rows per block of queries
inline constexpr int64_t kAttentionKeys = 64;

struct AttentionLoops {
  // Scratch memory of a task in bytes, aligned to 64.
  size_t (*forward_scratch)(const AttentionCall& call);
  size_t (*backward_scratch)(const AttentionCall& call);
  // Floats of a task's partial result for `join`, if there are several pieces.
  int64_t (*partial)(const AttentionCall& call);
  // Runs task ((b * heads + h) * blocks + block) * count + piece. `partial`: its partial result, if there are several
  // pieces.
  void (*forward)(const AttentionCall& call, const KeySplit& pieces, int64_t task, std::byte* scratch, float* partial);
  // Joins the pieces of task (b * heads + h) * blocks + block. `partials`: the partial results of its pieces, in order.
  void (*join)(const AttentionCall& call, const KeySplit& pieces, int64_t task, float* partials);
  // Runs task b * heads + h.
  void (*backward)(const AttentionCall& call, int64_t task, std::byte* scratch);
};

TORCH_REMOTE_LOOP_LEVELS(AttentionLoops, kAttention);

}  // namespace torch_remote::worker::kernels
