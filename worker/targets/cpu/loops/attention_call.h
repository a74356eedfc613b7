#pragma once

#include <cstddef>
#include <cstdint>

// Attention by blocks of queries and keys, never all scores at once: forward as FlashAttention-2 (Dao, 2023) has it,
// with a running maximum and sum a query, backward with the scores computed again. Compiled for two levels of x86-64
// (attention_loops.h); who calls it chooses.
//
// A task works on one head of keys and values and on the rows of all queries' heads that share it: row r is query
// r % queries of the r / queries'th of these.
namespace torch_remote::worker::kernels {

enum class AttentionType : uint8_t { kNone, kFloat, kBFloat16, kHalf, kBool };

// Element (b, h, i, j) lies at data + b * strides[0] + h * strides[1] + i * strides[2] + j * strides[3], in elements.
struct AttentionTensor {
  void* data = nullptr;
  int64_t strides[4] = {0, 0, 0, 0};
};

struct AttentionCall {
  AttentionType type = AttentionType::kFloat;      // of all but bias and logsumexp
  AttentionType bias_type = AttentionType::kNone;  // kBool: true where a key is seen
  int64_t batch = 0, heads = 0, shared = 1;        // heads of keys; queries' heads for each
  int64_t queries = 0, keys = 0, size = 0, value_size = 0;
  bool causal = false;  // query i sees keys 0, ..., i
  float scale = 1;
  AttentionTensor query, key, value, bias;
  AttentionTensor out;        // written by forward, read by backward
  AttentionTensor logsumexp;  // f32, [batch, query heads, queries]; so too
  // Backward: data is null where a gradient is not wanted.
  AttentionTensor grad, grad_query, grad_key, grad_value;
};

// Keys of a forward task: all, or pieces whose results are joined afterwards, where there are few other tasks. Depends
// on sizes alone.
struct AttentionPieces {
  int64_t keys = 0;   // of a piece
  int64_t count = 1;  // pieces
  int64_t rows = 0;   // of a block
  int64_t blocks = 1;
};

inline constexpr int64_t kAttentionRows = 64;  // of queries, in a block
inline constexpr int64_t kAttentionKeys = 64;

struct AttentionLoops {
  // Bytes of a task; aligned at 64.
  size_t (*forward_scratch)(const AttentionCall& call);
  size_t (*backward_scratch)(const AttentionCall& call);
  // Floats that a task leaves for `join`, if there are several pieces.
  int64_t (*partial)(const AttentionCall& call);
  // Task ((b * heads + h) * blocks + block) * count + piece. `partial`: where its result goes, if there are several
  // pieces.
  void (*forward)(const AttentionCall& call, const AttentionPieces& pieces, int64_t task, std::byte* scratch,
                  float* partial);
  // Joins the pieces of task (b * heads + h) * blocks + block: `partials` of all of them, in order.
  void (*join)(const AttentionCall& call, const AttentionPieces& pieces, int64_t task, float* partials);
  // Task b * heads + h.
  void (*backward)(const AttentionCall& call, int64_t task, std::byte* scratch);
};

extern const AttentionLoops kAttentionV3;  // AVX2, FMA, F16C
extern const AttentionLoops kAttentionV4;  // AVX-512

}  // namespace torch_remote::worker::kernels
