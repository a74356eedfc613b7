// Attention, forward and backward, block by block as in FlashAttention (Dao et al., 2022): a task has a block of
// queries and goes over blocks of keys, with a running maximum and sum per query. Lanes of vectors are queries. The
// backward pass computes the scores again. attention_call.h has the interface.
//
// Compiled once for each instruction set (bazel/vector_loops.bzl).
#include "worker/targets/cpu/loops/attention_call.h"
#include "worker/targets/cpu/loops/vector_block.h"

namespace torch_remote::worker::kernels::TORCH_REMOTE_ISA {
namespace {

constexpr int64_t kRows = kAttentionRows, kKeys = kAttentionKeys;
// Keys per step where rows attend to different keys. It is smaller, so that less work is wasted on masked keys.
constexpr int64_t kSeenKeys = 32;
constexpr float kInfinity = __builtin_inff();

template <AttentionType Type>
inline float read(const void* data, int64_t i) {
  if constexpr (Type == AttentionType::kFloat) return static_cast<const float*>(data)[i];
  if constexpr (Type == AttentionType::kBFloat16) return float_of_bfloat16(static_cast<const uint16_t*>(data)[i]);
  if constexpr (Type == AttentionType::kHalf) return float_of_half(static_cast<const uint16_t*>(data)[i]);
  if constexpr (Type == AttentionType::kBool) return static_cast<const uint8_t*>(data)[i] != 0 ? 0 : -kInfinity;
  return 0;
}

template <AttentionType Type>
inline void write(void* data, int64_t i, float value) {
  if constexpr (Type == AttentionType::kFloat) static_cast<float*>(data)[i] = value;
  if constexpr (Type == AttentionType::kBFloat16) static_cast<uint16_t*>(data)[i] = bfloat16_of_float(value);
  if constexpr (Type == AttentionType::kHalf) static_cast<uint16_t*>(data)[i] = half_of_float(value);
}

// Calls f.operator()<type>() with a runtime type as the template argument.
template <typename F>
inline void with_type(AttentionType type, F&& f) {
  switch (type) {
    case AttentionType::kFloat:
      return f.template operator()<AttentionType::kFloat>();
    case AttentionType::kBFloat16:
      return f.template operator()<AttentionType::kBFloat16>();
    case AttentionType::kHalf:
      return f.template operator()<AttentionType::kHalf>();
    case AttentionType::kBool:
      return f.template operator()<AttentionType::kBool>();
    case AttentionType::kNone:
      return;
  }
}

// Allocates pieces of a task's scratch memory.
class Arena {
 public:
  explicit Arena(std::byte* data) : data_(data) {}
  float* take(int64_t floats) {
    float* piece = reinterpret_cast<float*>(data_ + used_);
    used_ += (static_cast<size_t>(floats) * 4 + 63) / 64 * 64;
    return piece;
  }
  size_t used() const { return used_; }

 private:
  std::byte* data_;
  size_t used_ = 0;
};

// One head of the keys, with the `shared` heads of queries that use it. Computes where their rows begin, in elements.
// Rows of queries are numbered through all these heads.
struct Head {
  const AttentionCall& call;
  int64_t batch, head;

  int64_t rows() const { return call.shared * call.queries; }
  // The offset of row r in a tensor with one row per query (queries, results, gradients, bias, logsumexp).
  int64_t offset(const AttentionTensor& tensor, int64_t r) const {
    return batch * tensor.strides[0] + (head * call.shared + r / call.queries) * tensor.strides[1] +
           r % call.queries * tensor.strides[2];
  }
  // The offset of the first row in a tensor with one row per key (keys, values, their gradients).
  int64_t keys(const AttentionTensor& tensor) const { return batch * tensor.strides[0] + head * tensor.strides[1]; }
};

// Reads `size` elements as floats, from `offset` on, `step` apart, then fills with zeros up to `line` elements.
template <AttentionType Type>
inline void read_line(const void* data, int64_t offset, int64_t step, int64_t size, float* to, int64_t line) {
  int64_t d = 0;
  if (step == 1) {
    if constexpr (Type == AttentionType::kHalf) {
      for (; d + kLanes <= size; d += kLanes) {
        store(to + d, floats_of_halves(static_cast<const uint16_t*>(data) + offset + d));
      }
    }
    for (; d < size; ++d) to[d] = read<Type>(data, offset + d);
  } else {
    for (; d < size; ++d) to[d] = read<Type>(data, offset + d * step);
  }
  for (; d < line; ++d) to[d] = 0;
}

template <AttentionType Type>
inline void write_line(void* data, int64_t offset, int64_t step, int64_t size, const float* from, float factor) {
  if (step == 1) {
    for (int64_t d = 0; d < size; ++d) write<Type>(data, offset + d, from[d] * factor);
  } else {
    for (int64_t d = 0; d < size; ++d) write<Type>(data, offset + d * step, from[d] * factor);
  }
}

// Packs rows [first, first + count) row-major with `line` floats per row, and transposed, [line][kRows], times
// `factor`. Padding is 0.
void pack_rows(const Head& head, const AttentionTensor& tensor, int64_t size, int64_t first, int64_t count, float* rows,
               int64_t line, float* transposed, float factor) {
  const int64_t wide = padded(count);
  with_type(head.call.type, [&]<AttentionType Type>() {
    for (int64_t r = 0; r < count; ++r) {
      read_line<Type>(tensor.data, head.offset(tensor, first + r), tensor.strides[3], size, rows + r * line, line);
    }
  });
  for (int64_t i = count * line; i < wide * line; ++i) rows[i] = 0;
  transpose(wide, line, rows, line, transposed, kRows);
  if (factor == 1) return;
  for (int64_t d = 0; d < size; ++d) {
    for (int64_t r = 0; r < wide; r += kLanes) {
      store(transposed + d * kRows + r, load(transposed + d * kRows + r) * factor);
    }
  }
}

// The inverse of pack_rows: writes rows from [line][kRows], each times its own factor. `rows` is scratch memory.
void unpack_rows(const Head& head, const AttentionTensor& tensor, int64_t size, int64_t first, int64_t count,
                 const float* transposed, const float* factors, float* rows, int64_t line) {
  transpose(line, padded(count), transposed, kRows, rows, line);
  with_type(head.call.type, [&]<AttentionType Type>() {
    for (int64_t r = 0; r < count; ++r) {
      write_line<Type>(tensor.data, head.offset(tensor, first + r), tensor.strides[3], size, rows + r * line,
                       factors[r]);
    }
  });
}

// Rows of keys or values, as floats. Row k begins at data + k * line.
struct FloatRows {
  const float* data;
  int64_t line;
};

// Returns rows [first, first + count) of the tensor, in place or copied to `memory`. `once`: the caller reads each row
// only once, so a copy does not pay.
FloatRows float_rows(const Head& head, const AttentionTensor& tensor, int64_t size, int64_t first, int64_t count,
                     float* memory, bool once = false) {
  const int64_t offset = head.keys(tensor) + first * tensor.strides[2];
  // Other rows are copied to contiguous memory. Among them are float rows with a larger stride: if it is a large power
  // of two, they evict each other from the cache.
  if (head.call.type == AttentionType::kFloat && tensor.strides[3] == 1 && (once || tensor.strides[2] == size)) {
    return {static_cast<const float*>(tensor.data) + offset, tensor.strides[2]};
  }
  with_type(head.call.type, [&]<AttentionType Type>() {
    for (int64_t k = 0; k < count; ++k) {
      read_line<Type>(tensor.data, offset + k * tensor.strides[2], tensor.strides[3], size, memory + k * size, size);
    }
  });
  return {memory, size};
}

// A task's block of query rows; scores are stored in this order.
struct Block {
  int64_t first, count, wide;  // `wide`: the number of rows, padded to a multiple of the vector size
};

// The number of leading keys that some row of the block may attend to.
int64_t seen_keys(const AttentionCall& call, const Block& block) {
  if (!call.causal) return call.keys;
  int64_t last = 0;
  for (int64_t r = block.first; r < block.first + block.count; ++r) {
    const int64_t query = r % call.queries;
    if (query > last) last = query;
  }
  return smaller(call.keys, last + 1);
}

// The first row of the block that attends to key `from`, rounded down to a whole vector of rows. The rows before it
// attend to no key from `from` on, so they need no work.
int64_t first_seen(const AttentionCall& call, const Block& block, int64_t from) {
  if (!call.causal) return 0;
  int64_t r = 0;
  while (r < block.count && (block.first + r) % call.queries < from) ++r;
  return r / kLanes * kLanes;
}

// The number of keys, from `from` on, in the next step.
int64_t keys_at(const AttentionCall& call, const Block& block, int64_t from, int64_t end) {
  const bool all_seen = !call.causal || (call.shared == 1 && from + kKeys <= block.first + 1);
  return smaller(all_seen ? kKeys : kSeenKeys, end - from);
}

// Computes scores[k][r] of keys [from, from + count) and rows [low, block.wide), with bias and mask.
void score(const Head& head, const Block& block, int64_t low, int64_t from, int64_t count, const FloatRows& key,
           const float* query, float* scores) {
  const AttentionCall& call = head.call;
  multiply(count, block.wide - low, call.size, key.data, key.line, 1, query + low, kRows, scores + low, kRows, false);
  with_type(call.bias_type, [&]<AttentionType Type>() {
    const int64_t step = call.bias.strides[3];
    for (int64_t r = low; r < block.count; ++r) {
      const int64_t offset = head.offset(call.bias, block.first + r) + from * step;
      for (int64_t k = 0; k < count; ++k) scores[k * kRows + r] += read<Type>(call.bias.data, offset + k * step);
    }
  });
  if (!call.causal) return;
  for (int64_t r = low; r < block.count; ++r) {
    const int64_t query = (block.first + r) % call.queries;
    for (int64_t k = query + 1 > from ? query + 1 - from : 0; k < count; ++k) scores[k * kRows + r] = -kInfinity;
  }
}

// The number of floats of a block's packed rows, row-major or transposed.
int64_t packed_floats(int64_t size) { return padded(size) * kRows; }

// The state of a block of queries after some keys: sums of values [value_size][kRows], and the maximum and sum per row.
struct PartialSoftmax {
  float *out, *most, *sum;
};

PartialSoftmax partial_softmax(const AttentionCall& call, float* memory) {
  return {memory, memory + packed_floats(call.value_size), memory + packed_floats(call.value_size) + kRows};
}

int64_t partial_floats(const AttentionCall& call) { return packed_floats(call.value_size) + 2 * kRows; }

void start(const AttentionCall& call, const PartialSoftmax& state) {
  for (int64_t i = 0; i < packed_floats(call.value_size); ++i) state.out[i] = 0;
  for (int64_t r = 0; r < kRows; ++r) {
    state.most[r] = -kInfinity;
    state.sum[r] = 0;
  }
}

// Raises the maxima to `new_most`: multiplies the state so far by e^(most - new_most).
void raise(const AttentionCall& call, const PartialSoftmax& state, const float* new_most, int64_t low, int64_t wide) {
  for (int64_t r = low; r < wide; r += kLanes) {
    const Floats before = load(state.most + r), after = load(new_most + r);
    const Floats same = splat(0.0f);
    const Floats base = after == splat(-kInfinity) ? same : after;
    const Floats factor = exp_of(before - base);
    store(state.most + r, after);
    store(state.sum + r, load(state.sum + r) * factor);
    bool all = true;
    for (int64_t lane = 0; lane < kLanes; ++lane) all &= factor[lane] == 1;
    if (all) continue;
    for (int64_t d = 0; d < call.value_size; ++d) {
      store(state.out + d * kRows + r, load(state.out + d * kRows + r) * factor);
    }
  }
}

void finish(const Head& head, const Block& block, const PartialSoftmax& state, float* rows) {
  const AttentionCall& call = head.call;
  float factors[kRows];
  for (int64_t r = 0; r < block.count; ++r) factors[r] = state.sum[r] == 0 ? 0 : 1 / state.sum[r];
  unpack_rows(head, call.out, call.value_size, block.first, block.count, state.out, factors, rows,
              padded(call.value_size));
  if (call.logsumexp.data == nullptr) return;
  for (int64_t r = 0; r < block.count; ++r) {
    static_cast<float*>(call.logsumexp.data)[head.offset(call.logsumexp, block.first + r)] =
        state.most[r] + __builtin_logf(state.sum[r]);
  }
}

struct ForwardMemory {
  float *query, *rows, *scores, *key, *value, *state;

  ForwardMemory(const AttentionCall& call, Arena& arena)
      : query(arena.take(packed_floats(call.size > call.value_size ? call.size : call.value_size))),
        rows(arena.take(packed_floats(call.size > call.value_size ? call.size : call.value_size))),
        scores(arena.take(kKeys * kRows)),
        key(arena.take(kKeys * call.size)),
        value(arena.take(kKeys * call.value_size)),
        state(arena.take(partial_floats(call))) {}
};

size_t forward_scratch(const AttentionCall& call) {
  Arena arena(nullptr);
  ForwardMemory memory(call, arena);
  return arena.used();
}

Block block_of(const Head& head, int64_t rows, int64_t index) {
  const int64_t first = index * rows, count = smaller(rows, head.rows() - first);
  return {first, count, padded(count)};
}

// For a few rows, vector lanes run along the elements of the keys, which are read once and in place. An example is a
// decoder's step, with one query for each of the heads that share keys.
constexpr int64_t kFewRows = 4;

bool few_rows(const AttentionCall& call, const Block& block) {
  return block.count <= kFewRows && call.size % kLanes == 0 && call.value_size % kLanes == 0;
}

// Prefetches rows of keys or values into the L2 cache; row k is at data + k * step, `bytes` long. The hardware
// prefetcher follows neither the switches between keys and values nor page boundaries.
struct Prefetch {
  const char* data;
  int64_t step, bytes;

  void fetch(int64_t k) const {
    for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(data + k * step + i, 0, 2);
  }
};

Prefetch prefetch_of(const Head& head, const AttentionTensor& tensor, int64_t size, int64_t first) {
  const int64_t item = head.call.type == AttentionType::kFloat ? 4 : 2;
  return {static_cast<const char*>(tensor.data) + (head.keys(tensor) + first * tensor.strides[2]) * item,
          tensor.strides[2] * item, size * item};
}

// Computes scores[r][k], [kFewRows][kKeys]; the padding after `count` keys, up to a full vector, is minus infinity.
void score_few(const Head& head, const Block& block, int64_t from, int64_t count, const FloatRows& key,
               const float* query, int64_t line, const Prefetch& prefetch, float* scores) {
  const AttentionCall& call = head.call;
  for (int64_t r = 0; r < block.count; ++r) {
    const float* row = query + r * line;
    for (int64_t k = 0; k < count; k += kLanes) {
      Floats products[kLanes];
#pragma GCC unroll 16
      for (int64_t i = 0; i < kLanes; ++i) {
        products[i] = splat(0.0f);
        const int64_t row_of_keys = smaller(k + i, count - 1);
        if (r == 0) prefetch.fetch(row_of_keys);
        const float* element = key.data + row_of_keys * key.line;
        for (int64_t d = 0; d < call.size; d += kLanes) products[i] += load(element + d) * load(row + d);
      }
      store(scores + r * kKeys + k, sums_of(products) * splat(call.scale));
    }
    with_type(call.bias_type, [&]<AttentionType Type>() {
      const int64_t step = call.bias.strides[3], offset = head.offset(call.bias, block.first + r) + from * step;
      for (int64_t k = 0; k < count; ++k) scores[r * kKeys + k] += read<Type>(call.bias.data, offset + k * step);
    });
    const int64_t query_index = (block.first + r) % call.queries;
    const int64_t seen = call.causal ? smaller(count, query_index + 1 > from ? query_index + 1 - from : 0) : count;
    for (int64_t k = seen; k < padded(count); ++k) scores[r * kKeys + k] = -kInfinity;
  }
}

// sums[r][d] += the sum over k of weights[r][k] * value[k][d]; the weights are [Rows][kKeys].
template <int Rows>
void weigh(int64_t count, const float* weights, const FloatRows& value, int64_t size, const Prefetch& prefetch,
           float* sums) {
  constexpr int kVectors = kRegisters == 32 ? 4 : 2;  // as many sums as fit into the registers
  const auto tile = [&]<int Vectors>(int64_t d) {
    const auto fetch = [&](int64_t k) {
      if (d == 0) prefetch.fetch(k);
    };
    multiply_tile<Rows, Vectors>(count, weights, kKeys, 1, value.data + d, value.line, sums + d, size, true, fetch);
  };
  int64_t d = 0;
  for (; d + kVectors * kLanes <= size; d += kVectors * kLanes) tile.template operator()<kVectors>(d);
  for (; d < size; d += kLanes) tile.template operator()<1>(d);
}

// The forward pass for few_rows, over keys [from, end).
void find_few(const Head& head, const Block& block, int64_t from, int64_t end, const ForwardMemory& memory,
              const PartialSoftmax& state) {
  const AttentionCall& call = head.call;
  const int64_t line = call.value_size;
  float* sums = memory.query;  // the queries are in memory.rows
  for (int64_t i = 0; i < block.count * line; ++i) sums[i] = 0;
  for (int64_t count = 0; from < end; from += count) {
    count = smaller(kKeys, end - from);
    score_few(head, block, from, count, float_rows(head, call.key, call.size, from, count, memory.key, true),
              memory.rows, call.size, prefetch_of(head, call.value, line, from), memory.scores);
    for (int64_t r = 0; r < block.count; ++r) {
      float* scores = memory.scores + r * kKeys;
      Floats largest = splat(state.most[r]);
      for (int64_t k = 0; k < count; k += kLanes) largest = larger(load(scores + k), largest);
      float most = largest[0];
      for (int64_t lane = 1; lane < kLanes; ++lane) most = largest[lane] > most ? largest[lane] : most;
      const Floats base = splat(most == -kInfinity ? 0 : most);
      const float factor = exp_of(splat(state.most[r]) - base)[0];
      Floats sum = splat(0.0f);
      for (int64_t k = 0; k < count; k += kLanes) {
        const Floats weight = exp_of(load(scores + k) - base);
        store(scores + k, weight);
        sum += weight;
      }
      state.most[r] = most;
      state.sum[r] *= factor;
      for (int64_t lane = 0; lane < kLanes; ++lane) state.sum[r] += sum[lane];
      if (factor == 1) continue;
      for (int64_t d = 0; d < line; d += kLanes) store(sums + r * line + d, load(sums + r * line + d) * factor);
    }
    const FloatRows value = float_rows(head, call.value, call.value_size, from, count, memory.value, true);
    const int64_t after = from + count < end ? from + count : from;
    const Prefetch prefetch = prefetch_of(head, call.key, call.size, after);
    static_assert(kFewRows == 4);
    const auto of = block.count == 1 ? weigh<1> : block.count == 2 ? weigh<2> : block.count == 3 ? weigh<3> : weigh<4>;
    of(count, memory.scores, value, line, prefetch, sums);
  }
  for (int64_t r = 0; r < block.count; ++r) {
    for (int64_t d = 0; d < line; ++d) state.out[d * kRows + r] = sums[r * line + d];
  }
}

void forward(const AttentionCall& call, const KeySplit& pieces, int64_t task, std::byte* scratch, float* partials) {
  const int64_t piece = task % pieces.count, index = task / pieces.count;
  const int64_t which = index / pieces.blocks;
  const Head head{call, which / call.heads, which % call.heads};
  const Block block = block_of(head, pieces.rows, index % pieces.blocks);
  Arena arena(scratch);
  const ForwardMemory memory(call, arena);
  const PartialSoftmax state = partial_softmax(call, partials != nullptr ? partials : memory.state);
  start(call, state);
  pack_rows(head, call.query, call.size, block.first, block.count, memory.rows, padded(call.size), memory.query,
            call.scale);
  const int64_t end = smaller(seen_keys(call, block), (piece + 1) * pieces.keys);
  if (few_rows(call, block)) {
    find_few(head, block, piece * pieces.keys, end, memory, state);
    if (partials == nullptr) finish(head, block, state, memory.rows);
    return;
  }
  for (int64_t from = piece * pieces.keys, count = 0; from < end; from += count) {
    count = keys_at(call, block, from, end);
    const int64_t low = first_seen(call, block, from);
    score(head, block, low, from, count, float_rows(head, call.key, call.size, from, count, memory.key), memory.query,
          memory.scores);
    float most[kRows];
    for (int64_t r = low; r < block.wide; r += kLanes) {
      Floats all = load(state.most + r);
      for (int64_t k = 0; k < count; ++k) all = larger(load(memory.scores + k * kRows + r), all);
      store(most + r, all);
    }
    raise(call, state, most, low, block.wide);
    for (int64_t r = low; r < block.wide; r += kLanes) {
      Floats base = load(most + r), sum = load(state.sum + r);
      base = base == splat(-kInfinity) ? splat(0.0f) : base;
      for (int64_t k = 0; k < count; ++k) {
        const Floats weight = exp_of(load(memory.scores + k * kRows + r) - base);
        store(memory.scores + k * kRows + r, weight);
        sum += weight;
      }
      store(state.sum + r, sum);
    }
    const FloatRows value = float_rows(head, call.value, call.value_size, from, count, memory.value);
    multiply(call.value_size, block.wide - low, count, value.data, 1, value.line, memory.scores + low, kRows,
             state.out + low, kRows, true);
  }
  if (partials == nullptr) finish(head, block, state, memory.rows);
}

void join(const AttentionCall& call, const KeySplit& pieces, int64_t task, float* partials) {
  const int64_t which = task / pieces.blocks;
  const Head head{call, which / call.heads, which % call.heads};
  const Block block = block_of(head, pieces.rows, task % pieces.blocks);
  const PartialSoftmax all = partial_softmax(call, partials);
  for (int64_t piece = 1; piece < pieces.count; ++piece) {
    const PartialSoftmax other = partial_softmax(call, partials + piece * partial_floats(call));
    float most[kRows];
    for (int64_t r = 0; r < block.wide; r += kLanes) {
      store(most + r, larger(load(other.most + r), load(all.most + r)));
    }
    raise(call, all, most, 0, block.wide);
    raise(call, other, most, 0, block.wide);
    for (int64_t i = 0; i < packed_floats(call.value_size); ++i) all.out[i] += other.out[i];
    for (int64_t r = 0; r < block.wide; ++r) all.sum[r] += other.sum[r];
  }
  finish(head, block, all,
         partial_softmax(call, partials + partial_floats(call)).out);  // the second piece's memory is free
}

struct BackwardMemory {
  int64_t line, value_line;  // floats per packed row
  float *query, *query_rows, *grad, *grad_rows, *scores, *slopes, *key, *value, *grad_query, *grad_key, *grad_value;

  BackwardMemory(const AttentionCall& call, Arena& arena)
      : line(padded(call.size)),
        value_line(padded(call.value_size)),
        query(arena.take(packed_floats(call.size))),
        query_rows(arena.take(packed_floats(call.size))),
        grad(arena.take(packed_floats(call.value_size))),
        grad_rows(arena.take(packed_floats(call.value_size))),
        scores(arena.take(kKeys * kRows)),
        slopes(arena.take(kKeys * kRows)),
        key(arena.take(kKeys * call.size)),
        value(arena.take(kKeys * call.value_size)),
        grad_query(arena.take(packed_floats(call.size))),
        grad_key(arena.take(call.keys * line)),
        grad_value(arena.take(call.keys * value_line)) {}
};

size_t backward_scratch(const AttentionCall& call) {
  Arena arena(nullptr);
  BackwardMemory memory(call, arena);
  return arena.used();
}

// Writes the gradient of keys or values from lines of floats.
void write_lines(const Head& head, const AttentionTensor& tensor, int64_t size, const float* lines, int64_t line,
                 float factor) {
  if (tensor.data == nullptr) return;
  with_type(head.call.type, [&]<AttentionType Type>() {
    for (int64_t k = 0; k < head.call.keys; ++k) {
      write_line<Type>(tensor.data, head.keys(tensor) + k * tensor.strides[2], tensor.strides[3], size,
                       lines + k * line, factor);
    }
  });
}

// For each row of the block: the sum of out times grad, and logsumexp. `line`: scratch memory for a row of out.
void row_sums(const Head& head, const Block& block, const float* grad_rows, int64_t grad_line, float* line,
              float* delta, float* logsumexp) {
  const AttentionCall& call = head.call;
  for (int64_t r = 0; r < kRows; ++r) {
    delta[r] = 0;
    logsumexp[r] = kInfinity;  // gives a weight of 0
    if (r >= block.count) continue;
    with_type(call.type, [&]<AttentionType Type>() {
      read_line<Type>(call.out.data, head.offset(call.out, block.first + r), call.out.strides[3], call.value_size, line,
                      grad_line);
    });
    Floats sum = splat(0.0f);
    for (int64_t d = 0; d < grad_line; d += kLanes) sum += load(line + d) * load(grad_rows + r * grad_line + d);
    for (int64_t lane = 0; lane < kLanes; ++lane) delta[r] += sum[lane];
    const float all = static_cast<const float*>(call.logsumexp.data)[head.offset(call.logsumexp, block.first + r)];
    logsumexp[r] = all == -kInfinity ? 0 : all;
  }
}

void backward(const AttentionCall& call, int64_t task, std::byte* scratch) {
  const Head head{call, task / call.heads, task % call.heads};
  Arena arena(scratch);
  const BackwardMemory m(call, arena);
  for (int64_t i = 0; i < call.keys * m.line; ++i) m.grad_key[i] = 0;
  for (int64_t i = 0; i < call.keys * m.value_line; ++i) m.grad_value[i] = 0;
  float scales[kRows];
  for (int64_t r = 0; r < kRows; ++r) scales[r] = call.scale;
  for (int64_t first = 0; first < head.rows(); first += kRows) {
    const Block block = block_of(head, kRows, first / kRows);
    float delta[kRows], logsumexp[kRows];
    pack_rows(head, call.query, call.size, first, block.count, m.query_rows, m.line, m.query, call.scale);
    pack_rows(head, call.grad, call.value_size, first, block.count, m.grad_rows, m.value_line, m.grad, 1);
    row_sums(head, block, m.grad_rows, m.value_line, m.scores, delta, logsumexp);
    for (int64_t i = 0; i < packed_floats(call.size); ++i) m.grad_query[i] = 0;
    const int64_t end = seen_keys(call, block);
    for (int64_t from = 0, count = 0; from < end; from += count) {
      count = keys_at(call, block, from, end);
      const int64_t low = first_seen(call, block, from);
      const FloatRows key = float_rows(head, call.key, call.size, from, count, m.key);
      const FloatRows value = float_rows(head, call.value, call.value_size, from, count, m.value);
      score(head, block, low, from, count, key, m.query, m.scores);
      multiply(count, block.wide - low, call.value_size, value.data, value.line, 1, m.grad + low, kRows, m.slopes + low,
               kRows, false);
      for (int64_t k = 0; k < count; ++k) {
        float *weights = m.scores + k * kRows, *slopes = m.slopes + k * kRows;
        for (int64_t r = low; r < block.wide; r += kLanes) {
          const Floats weight = exp_of(load(weights + r) - load(logsumexp + r));
          store(weights + r, weight);
          store(slopes + r, weight * (load(slopes + r) - load(delta + r)));
        }
      }
      multiply(count, m.value_line, block.wide - low, m.scores + low, kRows, 1, m.grad_rows + low * m.value_line,
               m.value_line, m.grad_value + from * m.value_line, m.value_line, true);
      multiply(count, m.line, block.wide - low, m.slopes + low, kRows, 1, m.query_rows + low * m.line, m.line,
               m.grad_key + from * m.line, m.line, true);
      multiply(call.size, block.wide - low, count, key.data, 1, key.line, m.slopes + low, kRows, m.grad_query + low,
               kRows, true);
    }
    if (call.grad_query.data != nullptr) {
      unpack_rows(head, call.grad_query, call.size, first, block.count, m.grad_query, scales, m.query_rows, m.line);
    }
  }
  write_lines(head, call.grad_key, call.size, m.grad_key, m.line, call.scale);
  write_lines(head, call.grad_value, call.value_size, m.grad_value, m.value_line, 1);
}

}  // namespace

const AttentionLoops kAttention = {forward_scratch, backward_scratch, partial_floats, forward, join, backward};

}  // namespace torch_remote::worker::kernels::TORCH_REMOTE_ISA
