// Kernels that are wrong on purpose, and the right version of each. In the wrong version, findings name the line with
// the comment "found:".

#include "tests/emulated_gpu/emulator/testing/device_code.h"

#define BOTH(name, parameters, arguments)                  \
  KERNEL right_##name parameters { name<true> arguments; } \
  KERNEL wrong_##name parameters { name<false> arguments; }

template <bool kRight>
__device__ void race(float* out) {
  __shared__ float s[256];
  s[TID] = 0;
  __syncthreads();
  s[TID] = static_cast<float>(TID);  // found: race
  if (kRight) __syncthreads();
  out[BLOCK * THREADS + TID] = s[(TID + 32) % THREADS];
}
BOTH(race, (float* out), (out))

template <bool kRight>
__device__ void warp_race(float* out) {
  __shared__ float s[256];
  s[TID] = 0;
  __syncthreads();
  s[TID] = static_cast<float>(TID);  // found: warp_race
  if (kRight) sync_warp();
  out[BLOCK * THREADS + TID] = s[TID ^ 1];
}
BOTH(warp_race, (float* out), (out))

template <bool kRight>
__device__ void block_race(float* out) {
  if (kRight) {
    __nvvm_atom_add_gen_f(out, 1);
  } else if (TID == 0) {
    *out += 1;  // found: block_race
  }
}
BOTH(block_race, (float* out), (out))

template <bool kRight>
__device__ void shared_bounds(float* out, int shift) {
  __shared__ float a[64], z[64];
  a[TID % 64] = 1;
  z[TID % 64] = 2;
  __syncthreads();
  const uint place = kRight ? (shift + TID) % 64 : shift + TID % 64;
  out[BLOCK * THREADS + TID] = a[place] + z[TID % 64];  // found: shared_bounds
}
BOTH(shared_bounds, (float* out, int shift), (out, shift))

template <bool kRight>
__device__ void bounds(const float* x, float* out, int n) {
  for (int i = BLOCK * THREADS + TID; kRight ? i < n : i <= n; i += THREADS * BLOCKS) {
    out[i] = x[i];  // found: bounds
  }
}
BOTH(bounds, (const float* x, float* out, int n), (x, out, n))

template <bool kRight>
__device__ void uninitialised(float* out) {
  __shared__ float s[256];
  if (kRight || TID > 3) s[TID] = 1;
  __syncthreads();
  out[BLOCK * THREADS + TID] = s[TID];  // found: uninitialised
}
BOTH(uninitialised, (float* out), (out))

// Lanes 24 to 31 wait at the barrier.
template <bool kRight>
__device__ void shuffle(float* out) {
  float v = static_cast<float>(TID);
  if (kRight || TID % 32 < 24) v = __nvvm_shfl_sync_bfly_f32(kAll, v, 1, 31);  // found: shuffle
  __syncthreads();
  out[BLOCK * THREADS + TID] = v;
}
BOTH(shuffle, (float* out), (out))

template <bool kRight>
__device__ void barrier(float* out) {
  float v = 1;
  if (kRight) {
    __syncthreads();
  } else if (TID < 32) {
    out[BLOCK * THREADS + TID] = 2;
    __syncthreads();
  } else {
    v = 3;
    __syncthreads();  // found: barrier
  }
  out[BLOCK * THREADS + TID] = v;
}
BOTH(barrier, (float* out), (out))

template <bool kRight>
__device__ void alignment(const float* x, float* out) {
  if (TID + BLOCK != 0) return;
  *reinterpret_cast<float4*>(out) = *reinterpret_cast<const float4*>(x + (kRight ? 4 : 1));  // found: alignment
}
BOTH(alignment, (const float* x, float* out), (x, out))

// Waits for a write of the next block, although blocks need not run at the same time.
template <bool kRight>
__device__ void endless(volatile int* flags) {
  if (TID != 0) return;
  flags[BLOCK] = 1;
  while (flags[kRight ? BLOCK : BLOCK + 1] == 0) {  // found: endless
  }
}
BOTH(endless, (int* flags), (flags))

template <bool kRight>
__device__ void local_bounds(float* out, int shift) {
  float local[8];
  for (int i = 0; i < 8; ++i) local[i] = static_cast<float>(i + shift);
  out[BLOCK * THREADS + TID] = local[kRight ? (TID + shift) % 8 : shift + TID % 8];  // found: local_bounds
}
BOTH(local_bounds, (float* out, int shift), (out, shift))

// A thread that reads results of other blocks needs a fence before the counter, and one after it.
template <bool kRight>
__device__ void no_fence(float* partial, uint* counter, float* out) {
  __shared__ bool last;
  partial[BLOCK * THREADS + TID] = 1;
  if (kRight) fence();
  __syncthreads();
  if (TID == 0) last = __nvvm_atom_add_gen_i(reinterpret_cast<int*>(counter), 1) == BLOCKS - 1;
  __syncthreads();
  if (!last) return;
  fence();
  float sum = 0;
  for (uint i = 0; i < BLOCKS; ++i) sum += partial[i * THREADS + TID];  // found: no_fence
  out[TID] = sum;
}
BOTH(no_fence, (float* partial, uint* counter, float* out), (partial, counter, out))

// The upper half of the second warp has exited when the lower half shuffles with it.
template <bool kRight>
__device__ void gone_lane(float* out) {
  if (TID >= 48) return;
  const uint mask = TID < 32 ? kAll : 0xFFFF;
  const uint offset = kRight ? 8 : 16;
  float v = static_cast<float>(TID);
  v += __nvvm_shfl_sync_bfly_f32(mask, v, offset, 31);  // found: gone_lane
  out[BLOCK * THREADS + TID] = v;
}
BOTH(gone_lane, (float* out), (out))

template <bool kRight>
__device__ void wrong_mask(float* out) {
  const uint mask = kRight || TID % 32 < 16 ? kAll >> 16 : 0xFF000000;
  float v = 1;
  if (TID % 32 < (kRight ? 16 : 17)) v = __nvvm_shfl_sync_bfly_f32(mask, v, 1, 31);  // found: wrong_mask
  out[BLOCK * THREADS + TID] = v;
}
BOTH(wrong_mask, (float* out), (out))

// Reads a result of the launch that was never written.
template <bool kRight>
__device__ void unwritten(float* out) {
  if (kRight || TID != 5) out[BLOCK * THREADS + TID] = 1;
  __syncthreads();
  out[BLOCK * THREADS + TID] *= 2;  // found: unwritten
}
BOTH(unwritten, (float* out), (out))

template <bool kRight>
__device__ void stops(float* out) {
  if (!kRight && TID == 3) __builtin_trap();  // found: stops
  out[BLOCK * THREADS + TID] = 1;
}
BOTH(stops, (float* out), (out))

// A shuffle synchronizes lanes, but does not order memory accesses.
template <bool kRight>
__device__ void shuffle_race(float* x, float* out) {
  float v = x[BLOCK];
  v += __nvvm_shfl_sync_bfly_f32(kAll, v, 1, 31);
  if (kRight) __syncthreads();
  if (TID == 0) x[BLOCK] = v;  // found: shuffle_race
  out[BLOCK * THREADS + TID] = v;
}
BOTH(shuffle_race, (float* x, float* out), (x, out))
