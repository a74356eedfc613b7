#pragma once

#include <cstddef>
#include <cstdint>

#include "worker/targets/cpu/loops/levels.h"

// Attention by blocks of queries and keys; the full score matrix never exists. The forward pass follows
// FlashAttention-2 (Dao, 2023), with a running maximum and sum per query. The backward pass recomputes the scores.
// Compiled for several instruction sets (attention_loops.cpp); the caller chooses one.
//
// A task works on one head of keys and values. Its rows are the queries of all query heads that share this head: first
// those of the first of these query heads, then those of the second one, and so on. Each query head has `queries` rows.
// A task of the backward pass works on all rows, and a task of the forward pass on one block of rows (KeySplit).
namespace torch_remote::worker::kernels {

enum class AttentionType : uint8_t { kNone, kFloat, kBFloat16, kHalf, kBool };

// Element (b, h, i, j) is at data + b * strides[0] + h * strides[1] + i * strides[2] + j * strides[3], in elements. `h`
// is a head of keys for keys, values and their gradients, and a query head for all other tensors.
struct AttentionTensor {
  void* data = nullptr;
  int64_t strides[4] = {0, 0, 0, 0};
};

struct AttentionCall {
  AttentionType type = AttentionType::kFloat;  // of all tensors but bias and logsumexp: kFloat, kBFloat16 or kHalf
  // kNone: there is no bias. kBool: true where a key is not masked. Otherwise the bias is added to the scaled scores.
  AttentionType bias_type = AttentionType::kNone;
  int64_t batch = 0, heads = 0, shared = 1;  // heads: of keys; shared: query heads per key head
  // queries, keys: per head. size: elements of a query and of a key; value_size: elements of a value.
  int64_t queries = 0, keys = 0, size = 0, value_size = 0;
  bool causal = false;  // query i attends to keys 0, ..., i
  float scale = 1;      // factor of query times key
  AttentionTensor query, key, value, bias;
  AttentionTensor out;  // forward writes it, backward reads it
  // f32, [batch, query heads, queries]. forward writes it unless data is null, and backward reads it.
  AttentionTensor logsumexp;
  // For the backward pass: the gradient of `out`, and the gradients to write. The latter's data is null if a gradient
  // is not wanted. The bias gets no gradient.
  AttentionTensor grad, grad_query, grad_key, grad_value;
};

// How the forward pass is split into tasks: by blocks of query rows and, where this gives few tasks, by pieces of the
// keys, whose results are joined afterwards. The split depends on sizes alone.
struct KeySplit {
  int64_t keys = 0;    // keys per piece
  int64_t count = 1;   // number of pieces
  int64_t rows = 0;    // rows per block, at most kAttentionRows
  int64_t blocks = 1;  // blocks per head of keys
};

inline constexpr int64_t kAttentionRows = 64;  // the most rows of a block
inline constexpr int64_t kAttentionKeys = 64;  // the most keys that a task processes at a time

struct AttentionLoops {
  // Scratch memory of a task in bytes. The memory must be aligned to 64 bytes.
  size_t (*forward_scratch)(const AttentionCall& call);
  size_t (*backward_scratch)(const AttentionCall& call);
  // Floats of a task's partial result for `join`, if there are several pieces.
  int64_t (*partial)(const AttentionCall& call);
  // Runs task ((b * heads + h) * blocks + block) * count + piece. If there are several pieces, writes only `partial`,
  // the task's partial result. Otherwise `partial` is null, and the task writes the call's results.
  void (*forward)(const AttentionCall& call, const KeySplit& pieces, int64_t task, std::byte* scratch, float* partial);
  // Joins the pieces of task (b * heads + h) * blocks + block, and writes the call's results. `partials`: the partial
  // results of its pieces, in order and contiguous; they are overwritten.
  void (*join)(const AttentionCall& call, const KeySplit& pieces, int64_t task, float* partials);
  // Runs task b * heads + h.
  void (*backward)(const AttentionCall& call, int64_t task, std::byte* scratch);
};

TORCH_REMOTE_LOOP_LEVELS(AttentionLoops, kAttention);

}  // namespace torch_remote::worker::kernels
