// Correct kernels, each with a typical feature.

#include "tests/emulated_gpu/emulator/testing/device_code.h"

namespace {

__device__ float exp_approximately(float x) { return __nvvm_ex2_approx_ftz_f(x * 1.442695F); }

struct Sum {
  static constexpr float kNeutral = 0;
  __device__ static float of(float a, float b) { return a + b; }
};
struct Max {
  static constexpr float kNeutral = -__builtin_inff();
  __device__ static float of(float a, float b) { return __nvvm_fmax_f(a, b); }
};

template <typename Op>
__device__ float over_warp(float value) {
  for (uint offset = 16; offset != 0; offset /= 2) {
    value = Op::of(value, __nvvm_shfl_sync_bfly_f32(kAll, value, offset, 31));
  }
  return value;
}

// All threads get the result. The block must consist of full warps.
template <typename Op>
__device__ float over_block(float value, float* scratch) {
  value = over_warp<Op>(value);
  if (TID % 32 == 0) scratch[TID / 32] = value;
  __syncthreads();
  value = TID % 32 < THREADS / 32 ? scratch[TID % 32] : Op::kNeutral;
  __syncthreads();  // the scratch memory is reused
  return over_warp<Op>(value);
}

struct Scaling {
  float factors[3];
  long count;
  char first;
};

__constant__ float table[4] = {1, 10, 100, 1000};
__device__ uint blocks_done = 0;
__device__ int counters[6];

}  // namespace

KERNEL pointwise(const float* __restrict x, const float* __restrict w, float* __restrict out, float b, long n) {
  const long step = THREADS * BLOCKS;
  for (long i = BLOCK * THREADS + TID; i < n / 4; i += step) {
    const float4 a = reinterpret_cast<const float4*>(x)[i], c = reinterpret_cast<const float4*>(w)[i];
    reinterpret_cast<float4*>(out)[i] = __builtin_elementwise_max(a * c + b, (float4)0.F) * a;
  }
  for (long i = n / 4 * 4 + BLOCK * THREADS + TID; i < n; i += step) {
    out[i] = __nvvm_fmax_f(x[i] * w[i] + b, 0) * x[i];
  }
}

KERNEL reduce(const float* x, float* out, int n) {
  __shared__ float scratch[32];
  float sum = 0;
  for (int i = BLOCK * THREADS + TID; i < n; i += THREADS * BLOCKS) sum += x[i];
  sum = over_block<Sum>(sum, scratch);
  if (TID == 0) __nvvm_atom_add_gen_f(out, sum);
}

// One block per row.
KERNEL __launch_bounds__(256) softmax(const float* x, float* out, int columns) {
  __shared__ float scratch[32];
  x += static_cast<long>(BLOCK) * columns;
  out += static_cast<long>(BLOCK) * columns;
  float m = Max::kNeutral, s = 0;
  for (int i = TID; i < columns; i += THREADS) m = Max::of(m, x[i]);
  m = over_block<Max>(m, scratch);
  for (int i = TID; i < columns; i += THREADS) s += exp_approximately(x[i] - m);
  s = over_block<Sum>(s, scratch);
  for (int i = TID; i < columns; i += THREADS) out[i] = exp_approximately(x[i] - m) / s;
}

// Each lane has a loop of a different length. Then there are shuffles and a vote, without a barrier.
KERNEL collatz(const int* x, int* out, int n) {
  const int i = BLOCK * THREADS + TID;
  int v = i < n ? x[i] : 1, steps = 0;
  for (; v > 1; ++steps) v = v % 2 != 0 ? 3 * v + 1 : v / 2;
  for (uint offset = 1; offset < 32; offset *= 2) {
    const int from = __nvvm_shfl_sync_up_i32(kAll, steps, offset, 0);
    if (TID % 32 >= offset) steps += from;
  }
  const uint odd = __nvvm_vote_ballot_sync(kAll, steps % 2 != 0);
  if (i < n) out[i] = steps * 64 + __builtin_popcount(odd);
}

// Reverses each block through dynamic shared memory.
KERNEL reverse(const int* x, int* out) {
  extern __shared__ int line[];
  __shared__ int fixed;
  if (TID == 0) fixed = 7;
  line[TID] = x[BLOCK * THREADS + TID];
  __syncthreads();
  out[BLOCK * THREADS + TID] = line[THREADS - 1 - TID] + fixed;
}

KERNEL spaces(float* out, Scaling scaling, int seed) {
  float local[8];
  for (int i = 0; i < 8; ++i) local[i] = static_cast<float>(i * seed);
  const uint i = TID;
  if (static_cast<long>(i) >= scaling.count) return;
  out[i] = local[(i + seed) % 8] * scaling.factors[i % 3] + table[i % 4] + static_cast<float>(scaling.first);
}

KERNEL transpose(const float* x, float* out, int rows, int columns) {
  __shared__ float tile[16][17];
  int row = BLOCK_Y * 16 + TID_Y, column = BLOCK * 16 + TID;
  if (row < rows && column < columns) tile[TID_Y][TID] = x[row * columns + column];
  __syncthreads();
  row = BLOCK_Y * 16 + TID;
  column = BLOCK * 16 + TID_Y;
  if (row < rows && column < columns) out[column * rows + row] = tile[TID][TID_Y];
}

// Rounds to float16 and bfloat16, and converts back.
KERNEL halves(const float* x, unsigned short* f16, unsigned short* bf16, float* back, int n) {
  const int i = BLOCK * THREADS + TID;
  if (i >= n) return;
  const auto h = static_cast<_Float16>(x[i]);
  const auto b = static_cast<__bf16>(x[i]);
  f16[i] = __builtin_bit_cast(unsigned short, h);
  bf16[i] = __builtin_bit_cast(unsigned short, b);
  back[2 * i] = static_cast<float>(h);
  back[2 * i + 1] = static_cast<float>(b);
}

// Shuffles, votes, match and redux. 64 threads; five results per thread.
KERNEL lanes(const int* x, int* out) {
  const uint lane = TID % 32;
  const int value = x[TID];
  int* mine = out + 5 * TID;
  mine[0] = __nvvm_shfl_sync_idx_i32(kAll, value, (lane + 3) % 8, 0x181F);  // in segments of eight lanes
  mine[1] = __nvvm_shfl_sync_down_i32(kAll, value, 5, 31);
  mine[2] = static_cast<int>(__nvvm_match_any_sync_i32(kAll, value % 4));
  mine[3] = __nvvm_redux_sync_add(value, kAll);
  if (lane >= 20) {
    mine[4] = __nvvm_vote_all_sync(0xFFF00000, value > 0) ? 1 : 0;
  } else {
    mine[4] = __nvvm_vote_any_sync(0x000FFFFF, value == x[0]) ? 2 : 3;
  }
}

KERNEL atomics(int* out) {
  __nvvm_atom_add_gen_i(&counters[0], 2);
  __nvvm_atom_max_gen_i(&counters[1], static_cast<int>(BLOCK * THREADS + TID));
  __nvvm_atom_inc_gen_ui(reinterpret_cast<uint*>(&counters[2]), 9);
  __nvvm_atom_or_gen_i(&counters[3], 1 << (TID % 32));
  int seen = *static_cast<volatile int*>(&counters[4]), before = 0;
  do {
    before = seen;
    seen = __nvvm_atom_cas_gen_i(&counters[4], before, before + 3);
  } while (seen != before);
  (void)out;
}

// The block that finishes last adds the results of all blocks.
KERNEL last_block(const int* x, int* partial, int* out) {
  __shared__ bool last;
  partial[BLOCK * THREADS + TID] = x[BLOCK * THREADS + TID] * 2;
  fence();
  __syncthreads();
  if (TID == 0) last = __nvvm_atom_inc_gen_ui(&blocks_done, BLOCKS - 1) == BLOCKS - 1;
  __syncthreads();
  if (!last) return;
  fence();
  int sum = 0;
  for (uint i = 0; i < BLOCKS; ++i) sum += partial[i * THREADS + TID];
  out[TID] = sum;
}

// The first thread waits for a thread of another warp, without a barrier.
KERNEL handshake(volatile int* flag, int* out) {
  if (TID == 0) {
    while (*flag == 0) __nvvm_nanosleep(100);
    fence();
    out[0] = out[1] + 1;
  } else if (TID == 40) {
    out[1] = 41;
    fence();
    *flag = 1;
  }
}

KERNEL barriers(int rounds) {
  for (int i = 0; i < rounds; ++i) __syncthreads();
}

// How many threads of the block have an odd number, and whether all or any have.
KERNEL counting_barrier(const int* x, int* out) {
  const int odd = x[TID] % 2;
  const int count = __nvvm_bar0_popc(odd), all = __nvvm_bar0_and(odd), some = __nvvm_bar0_or(odd);
  out[TID] = count * 4 + (all != 0 ? 2 : 0) + (some != 0 ? 1 : 0);
}
