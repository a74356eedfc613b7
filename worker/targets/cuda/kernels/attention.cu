// Attention without tensor cores. A warp handles one query and iterates over the keys, with a running maximum and sum
// (Dao, "FlashAttention-2", 2023). If there are few queries (a decoder's step), the keys are split into pieces whose
// results are joined. The backward pass recomputes the scores. A warp handles one query for the gradient of queries,
// and one key for those of keys and values. So no atomic additions are needed. Lanes hold adjacent elements of a row.

#include "worker/targets/cuda/kernels/device.h"

namespace torch_remote::worker::cuda {
namespace {

constexpr u32 kAll = 0xFFFFFFFF;

template <i64 kType>
struct Element {
  using Wide = float;
};
template <>
struct Element<kFloat64> {
  using Wide = double;
};

__device__ float exponential(float x) { return __nvvm_ex2_approx_f(x * 1.44269504F); }
__device__ double exponential(double x) { return exp(x); }

__device__ float other_lane(float x, int apart) { return __nvvm_shfl_sync_bfly_f32(kAll, x, apart, 31); }
__device__ double other_lane(double x, int apart) {
  const auto bits = __builtin_bit_cast(u64, x);
  const u64 low = static_cast<u32>(__nvvm_shfl_sync_bfly_i32(kAll, static_cast<int>(bits), apart, 31));
  const u64 high = static_cast<u32>(__nvvm_shfl_sync_bfly_i32(kAll, static_cast<int>(bits >> 32), apart, 31));
  return __builtin_bit_cast(double, high << 32 | low);
}
template <typename T>
__device__ T over_warp(T x) {
  for (int apart = 16; apart > 0; apart /= 2) x += other_lane(x, apart);
  return x;
}

// A lane's elements of a row.
template <typename T>
constexpr int kEach = (sizeof(T) == 8 ? kMaxAttentionF64 : kMaxAttention) / 32;
template <typename T>
struct Part {
  T each[kEach<T>];
};
__device__ int lane() { return static_cast<int>(thread()) & 31; }
// The address of the lane's first element.
template <i64 kType>
__device__ u64 begin_of(u64 data, i64 at) {
  constexpr i64 kBytes = kType == kFloat64 ? 8 : kType == kFloat32 ? 4 : 2;
  return data + static_cast<u64>((at + lane()) * kBytes);
}
template <i64 kType, typename T = typename Element<kType>::Wide>
__device__ Part<T> load(u64 data, i64 at, i64 size) {
  const u64 from = begin_of<kType>(data, at);
  const int mine = static_cast<int>(size) - lane();
  Part<T> part;
#pragma unroll
  for (int e = 0; e < kEach<T>; ++e) {
    part.each[e] = e * 32 < mine ? static_cast<T>(load_float(from, e * 32, kType)) : T{0};
  }
  return part;
}
template <i64 kType, typename T>
__device__ void store(u64 data, i64 at, i64 size, const Part<T>& part, T factor) {
  const u64 to = begin_of<kType>(data, at);
  const int mine = static_cast<int>(size) - lane();
#pragma unroll
  for (int e = 0; e < kEach<T>; ++e) {
    if (e * 32 < mine) store_float(to, e * 32, kType, static_cast<double>(part.each[e] * factor));
  }
}
template <typename T>
__device__ T dot(const Part<T>& a, const Part<T>& b) {
  T sum = 0;
#pragma unroll
  for (int e = 0; e < kEach<T>; ++e) sum += a.each[e] * b.each[e];
  return over_warp(sum);
}
template <typename T>
__device__ void add(Part<T>& to, T factor, const Part<T>& part) {
#pragma unroll
  for (int e = 0; e < kEach<T>; ++e) to.each[e] += factor * part.each[e];
}

// One query row. `shared` query heads share each of the `heads` key heads.
struct Row {
  i64 batch, head, key_head, query;
};
__device__ Row row_of(const AttentionArguments& call, i64 number) {
  const i64 line = divide(number, call.queries), heads = call.heads * call.shared;
  Row row{};
  row.query = number - line * call.queries;
  row.batch = divide(line, heads);
  row.head = line - row.batch * heads;
  row.key_head = divide(row.head, call.shared);
  return row;
}
__device__ i64 position(const i64* strides, i64 batch, i64 head, i64 row) {
  return batch * strides[0] + head * strides[1] + row * strides[2];
}

// Adds the bias to a score; minus infinity if the key is masked.
template <i64 kType, typename T>
__device__ T biased(const AttentionArguments& call, const Row& row, i64 key, T score) {
  if (call.bias == 0) return score;
  const i64 at = position(call.bias_strides, row.batch, row.head, row.query) + key * call.bias_strides[3];
  if (call.bias_is_mask != 0) return pointer<const u8>(call.bias)[at] != 0 ? score : -static_cast<T>(__builtin_inff());
  return score + static_cast<T>(load_float(call.bias, at, kType));
}
__device__ i64 keys_seen(const AttentionArguments& call, i64 query) {
  return call.causal != 0 && query + 1 < call.keys ? query + 1 : call.keys;
}

// The state for a piece of the keys: maximum, sum, and weighted sum of values. Kept in scratch memory as f32 or f64.
template <typename T>
struct Running {
  T most, sum;
  Part<T> values;
};

template <typename T>
__device__ void join(Running<T>& to, T most, T sum, const Part<T>& values) {
  const T both = to.most > most ? to.most : most;
  if (both == -static_cast<T>(__builtin_inff())) return;
  const T mine = exponential(to.most - both), other = exponential(most - both);
  to.most = both;
  to.sum = to.sum * mine + sum * other;
#pragma unroll
  for (int e = 0; e < kEach<T>; ++e) to.values.each[e] = to.values.each[e] * mine + values.each[e] * other;
}

// Rows that attend to no key become zeros.
template <i64 kType, typename T>
__device__ void finish(const AttentionArguments& call, const Row& row, const Running<T>& all) {
  const T factor = all.sum > 0 || all.sum != all.sum ? 1 / all.sum : T{0};
  store<kType>(call.out, position(call.out_strides, row.batch, row.head, row.query), call.value_size, all.values,
               factor);
  if (call.logsumexp == 0 || (thread() & 31) != 0) return;
  const double sum = all.sum > 0 || all.sum != all.sum
                         ? static_cast<double>(all.most) + log(static_cast<double>(all.sum))
                         : -__builtin_inf();
  store_float(call.logsumexp, position(call.logsumexp_strides, row.batch, row.head, row.query), call.logsumexp_dtype,
              sum);
}

template <i64 kType>
__device__ void forward(const AttentionArguments& call) {
  using T = typename Element<kType>::Wide;
  const i64 rows = call.batch * call.heads * call.shared * call.queries;
  for (i64 task = divide(first_item(), 32); task < rows * call.pieces; task += divide(all_threads(), 32)) {
    const i64 number = divide(task, call.pieces), piece = task - number * call.pieces;
    const Row row = row_of(call, number);
    const Part<T> query =
        load<kType>(call.query, position(call.query_strides, row.batch, row.head, row.query), call.size);
    Running<T> all{-static_cast<T>(__builtin_inff()), 0, {}};
    for (int e = 0; e < kEach<T>; ++e) all.values.each[e] = 0;
    const i64 begin = piece * call.piece_keys, seen = keys_seen(call, row.query);
    const i64 end = begin + call.piece_keys < seen ? begin + call.piece_keys : seen;
    const i64 keys = position(call.key_strides, row.batch, row.key_head, 0);
    const i64 values = position(call.value_strides, row.batch, row.key_head, 0);
#pragma unroll 1
    for (i64 k = begin; k < end; ++k) {
      const Part<T> key = load<kType>(call.key, keys + k * call.key_strides[2], call.size);
      const T score = biased<kType>(call, row, k, dot(query, key) * static_cast<T>(call.scale));
      if (score == -static_cast<T>(__builtin_inff())) continue;
      join(all, score, T{1}, load<kType>(call.value, values + k * call.value_strides[2], call.value_size));
    }
    if (call.pieces == 1) {
      finish<kType>(call, row, all);
      continue;
    }
    T* const to = pointer<T>(call.partial) + task * (call.value_size + 2);
    if ((thread() & 31) == 0) {
      to[0] = all.most;
      to[1] = all.sum;
    }
#pragma unroll
    for (int e = 0; e < kEach<T>; ++e) {
      const i64 i = e * 32 + (thread() & 31);
      if (i < call.value_size) to[2 + i] = all.values.each[e];
    }
  }
}

template <i64 kType>
__device__ void join_pieces(const AttentionArguments& call) {
  using T = typename Element<kType>::Wide;
  const i64 rows = call.batch * call.heads * call.shared * call.queries;
  for (i64 number = divide(first_item(), 32); number < rows; number += divide(all_threads(), 32)) {
    Running<T> all{-static_cast<T>(__builtin_inff()), 0, {}};
    for (int e = 0; e < kEach<T>; ++e) all.values.each[e] = 0;
#pragma unroll 1
    for (i64 piece = 0; piece < call.pieces; ++piece) {
      const T* const from = pointer<const T>(call.partial) + (number * call.pieces + piece) * (call.value_size + 2);
      Part<T> values;
#pragma unroll
      for (int e = 0; e < kEach<T>; ++e) {
        const i64 i = e * 32 + (thread() & 31);
        values.each[e] = i < call.value_size ? from[2 + i] : T{0};
      }
      join(all, from[0], from[1], values);
    }
    finish<kType>(call, row_of(call, number), all);
  }
}

// The attention weight of a key.
template <i64 kType, typename T>
__device__ T weigh(const AttentionArguments& call, const Row& row, i64 k, const Part<T>& query, const Part<T>& key) {
  const T score = biased<kType>(call, row, k, dot(query, key) * static_cast<T>(call.scale));
  if (score == -static_cast<T>(__builtin_inff())) return 0;
  const i64 at = position(call.logsumexp_strides, row.batch, row.head, row.query);
  return exponential(score - static_cast<T>(load_float(call.logsumexp, at, call.logsumexp_dtype)));
}

template <i64 kType, typename T = typename Element<kType>::Wide>
__device__ Part<T> load_row(u64 data, const i64* strides, i64 batch, i64 head, i64 row, i64 size) {
  return load<kType>(data, position(strides, batch, head, row), size);
}

// For each query: the sum of its gradient times its output.
template <i64 kType>
__device__ void find_delta(const AttentionArguments& call) {
  using T = typename Element<kType>::Wide;
  const i64 rows = call.batch * call.heads * call.shared * call.queries;
  for (i64 number = divide(first_item(), 32); number < rows; number += divide(all_threads(), 32)) {
    const Row row = row_of(call, number);
    const auto grad = load_row<kType>(call.grad, call.grad_strides, row.batch, row.head, row.query, call.value_size);
    const auto out = load_row<kType>(call.out, call.out_strides, row.batch, row.head, row.query, call.value_size);
    const T delta = dot(grad, out);
    if (lane() == 0) pointer<T>(call.delta)[number] = delta;
  }
}

template <i64 kType>
__device__ void backward_queries(const AttentionArguments& call) {
  using T = typename Element<kType>::Wide;
  const i64 rows = call.batch * call.heads * call.shared * call.queries;
  for (i64 number = divide(first_item(), 32); number < rows; number += divide(all_threads(), 32)) {
    const Row row = row_of(call, number);
    const auto query = load_row<kType>(call.query, call.query_strides, row.batch, row.head, row.query, call.size);
    const auto grad = load_row<kType>(call.grad, call.grad_strides, row.batch, row.head, row.query, call.value_size);
    const T delta = pointer<const T>(call.delta)[number];
    Part<T> sum;
    for (int e = 0; e < kEach<T>; ++e) sum.each[e] = 0;
    const i64 seen = keys_seen(call, row.query);
#pragma unroll 1
    for (i64 k = 0; k < seen; ++k) {
      const auto key = load_row<kType>(call.key, call.key_strides, row.batch, row.key_head, k, call.size);
      const auto value = load_row<kType>(call.value, call.value_strides, row.batch, row.key_head, k, call.value_size);
      const T weight = weigh<kType>(call, row, k, query, key);
      add(sum, weight * (dot(grad, value) - delta) * static_cast<T>(call.scale), key);
    }
    const i64* const strides = call.grad_query_strides;
    store<kType>(call.grad_query, position(strides, row.batch, row.head, row.query), call.size, sum, T{1});
  }
}

// The gradients of keys, or of values.
template <i64 kType, bool kOfValues>
__device__ void backward_keys(const AttentionArguments& call) {
  using T = typename Element<kType>::Wide;
  const i64 rows = call.batch * call.heads * call.keys;
  for (i64 number = divide(first_item(), 32); number < rows; number += divide(all_threads(), 32)) {
    const i64 head = divide(number, call.keys), k = number - head * call.keys;
    Row row{};
    row.batch = divide(head, call.heads);
    row.key_head = head - row.batch * call.heads;
    const auto key = load_row<kType>(call.key, call.key_strides, row.batch, row.key_head, k, call.size);
    Part<T> value, sum;
    if (!kOfValues) {
      value = load_row<kType>(call.value, call.value_strides, row.batch, row.key_head, k, call.value_size);
    }
    for (T& each : sum.each) each = 0;
#pragma unroll 1
    for (i64 r = 0; r < call.shared * call.queries; ++r) {
      const i64 shared = divide(r, call.queries);
      row.head = row.key_head * call.shared + shared;
      row.query = r - shared * call.queries;
      if (call.causal != 0 && row.query < k) continue;
      const auto query = load_row<kType>(call.query, call.query_strides, row.batch, row.head, row.query, call.size);
      const auto grad = load_row<kType>(call.grad, call.grad_strides, row.batch, row.head, row.query, call.value_size);
      const T weight = weigh<kType>(call, row, k, query, key);
      if (kOfValues) {
        add(sum, weight, grad);
        continue;
      }
      const i64 line = (row.batch * call.heads * call.shared + row.head) * call.queries;
      const T delta = pointer<const T>(call.delta)[line + row.query];
      add(sum, weight * (dot(grad, value) - delta) * static_cast<T>(call.scale), query);
    }
    const u64 to = kOfValues ? call.grad_value : call.grad_key;
    const i64* const strides = kOfValues ? call.grad_value_strides : call.grad_key_strides;
    const i64 size = kOfValues ? call.value_size : call.size;
    store<kType>(to, position(strides, row.batch, row.key_head, k), size, sum, T{1});
  }
}

// -- For cuDNN's attention

// Below all scores that count, and far from f32's limit, so that a row of only this value yields finite numbers.
template <i64 kType>
constexpr float kMaskedScore = kType == kFloat16 ? -65504.0F : -1e30F;

template <i64 kType>
__device__ void make_bias(const AttentionBiasArguments& call) {
  const i64 rows = call.batch * call.heads * call.queries;
  for (i64 number = divide(first_item(), 32); number < rows; number += divide(all_threads(), 32)) {
    const i64 line = divide(number, call.queries), query = number - line * call.queries;
    const i64 batch = divide(line, call.heads), head = line - batch * call.heads;
    const i64 from = position(call.strides, batch, head, query);
    float any = 0;
    for (i64 key = lane(); key < call.row; key += 32) {
      float score = kMaskedScore<kType>;
      if (key < call.keys && (call.causal == 0 || key <= query)) {
        const i64 at = from + key * call.strides[3];
        const float given = call.is_mask == 0 ? static_cast<float>(load_float(call.bias, at, kType))
                            : pointer<const u8>(call.bias)[at] != 0 ? 0.0F
                                                                    : -__builtin_inff();
        any += given == -__builtin_inff() ? 0.0F : 1.0F;
        if (!(given < kMaskedScore<kType>)) score = given;  // Keeps NaN.
      }
      store_float(call.out, number * call.row + key, kType, static_cast<double>(score));
    }
    any = over_warp(any);
    if (lane() == 0) pointer<u8>(call.has_keys)[number] = any > 0 ? 1 : 0;
  }
}

}  // namespace

KERNEL(128) attention_bias_f16(const AttentionBiasArguments call) { make_bias<kFloat16>(call); }
KERNEL(128) attention_bias_bf16(const AttentionBiasArguments call) { make_bias<kBFloat16>(call); }

KERNEL(128) attention_masked_rows(const AttentionMaskedRowsArguments call) {
  const i64 rows = call.batch * call.heads * call.queries;
  for (i64 number = divide(first_item(), 32); number < rows; number += divide(all_threads(), 32)) {
    const i64 line = divide(number, call.queries), query = number - line * call.queries;
    const i64 batch = divide(line, call.heads), head = line - batch * call.heads;
    if (pointer<const u8>(call.has_keys)[batch * call.has_keys_batch + head * call.has_keys_head + query] != 0)
      continue;
    const i64 to = position(call.out_strides, batch, head, query);
    for (i64 e = lane(); e < call.size; e += 32) pointer<u16>(call.out)[to + e] = 0;  // Zero in f16 and in bf16.
    if (lane() == 0) pointer<float>(call.logsumexp)[number] = -__builtin_inff();
  }
}

KERNEL(256) attention_sums(const AttentionSumsArguments call) {
  const i64 rows = call.batch * call.heads * call.queries;
  for (i64 number = first_item(); number < rows; number += all_threads()) {
    const i64 line = divide(number, call.queries), query = number - line * call.queries;
    const i64 batch = divide(line, call.heads), head = line - batch * call.heads;
    const float sum = pointer<const float>(call.logsumexp)[position(call.strides, batch, head, query)];
    pointer<float>(call.out)[number] = sum == -__builtin_inff() ? __builtin_inff() : sum;
  }
}

#define ATTENTION(type, kType)                                                                                     \
  KERNEL(128) attention_forward_##type(const AttentionArguments call) { forward<kType>(call); }                    \
  KERNEL(128) attention_join_##type(const AttentionArguments call) { join_pieces<kType>(call); }                   \
  KERNEL(128) attention_delta_##type(const AttentionArguments call) { find_delta<kType>(call); }                   \
  KERNEL(128) attention_backward_queries_##type(const AttentionArguments call) { backward_queries<kType>(call); }  \
  KERNEL(128) attention_backward_keys_##type(const AttentionArguments call) { backward_keys<kType, false>(call); } \
  KERNEL(128) attention_backward_values_##type(const AttentionArguments call) { backward_keys<kType, true>(call); }

ATTENTION(f32, kFloat32)
ATTENTION(bf16, kBFloat16)
ATTENTION(f16, kFloat16)
ATTENTION(f64, kFloat64)

}  // namespace torch_remote::worker::cuda
