// Vectors of floats and a GEMM of small blocks, for the instruction set that the including file is compiled with
// (TORCH_REMOTE_ISA is its name). This file includes no header with inline functions, because the linker could use that
// code in the whole program.
#pragma once

#include <stddef.h>
#include <stdint.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace torch_remote::worker::kernels::TORCH_REMOTE_ISA {

#if defined(__AVX512F__)
inline constexpr int64_t kLanes = 16;
inline constexpr int kTileRows = 8;
inline constexpr int kRegisters = 32;
#elif defined(__AVX2__)
inline constexpr int64_t kLanes = 8;
inline constexpr int kTileRows = 4;
inline constexpr int kRegisters = 16;
#else
inline constexpr int64_t kLanes = 4;
inline constexpr int kTileRows = 8;
inline constexpr int kRegisters = 32;
#endif

typedef float Floats __attribute__((vector_size(kLanes * 4), aligned(4), may_alias));
typedef int32_t Ints __attribute__((vector_size(kLanes * 4), aligned(4), may_alias));

static inline int64_t padded(int64_t count) { return (count + kLanes - 1) / kLanes * kLanes; }
static inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

static inline Floats splat(float value) { return value - Floats{}; }
static inline Floats load(const float* data) { return *reinterpret_cast<const Floats*>(data); }
static inline void store(float* data, Floats value) { *reinterpret_cast<Floats*>(data) = value; }
static inline Floats larger(Floats a, Floats b) { return a > b ? a : b; }

// e^x, accurate to 1 ulp; 0 where the result would be denormal.
static inline Floats exp_of(Floats x) {
  const Floats magic = splat(12582912.0f);  // 1.5 * 2^23: its low bits hold the rounded integer
  const Floats shifted = x * splat(1.44269504f) + magic;
  const Floats n = shifted - magic;
  Floats r = x - n * splat(0.693359375f);
  r = r - n * splat(-2.12194440e-4f);
  Floats p = splat(1.9875691500e-4f);
  p = p * r + splat(1.3981999507e-3f);
  p = p * r + splat(8.3334519073e-3f);
  p = p * r + splat(4.1665795894e-2f);
  p = p * r + splat(1.6666665459e-1f);
  p = p * r + splat(5.0000001201e-1f);
  const Floats y = p * (r * r) + r + splat(1.0f);
  const Ints bits = __builtin_bit_cast(Ints, y) + (__builtin_bit_cast(Ints, shifted) << 23);
  Floats result = __builtin_bit_cast(Floats, bits);
  result = x < splat(-87.3f) ? splat(0.0f) : result;
  result = x > splat(88.7f) ? splat(__builtin_inff()) : result;
  return x == x ? result : x;
}

// C[i][n] = sum over r of A[i * along + r * across] * B[r * b_line + n], plus C[i][n] if `add`. Computes `Rows` rows of
// one tile, `Vectors` vectors wide. Calls `before(r)` before it reads line r of B.
template <int Rows, int Vectors, typename Before>
static inline __attribute__((always_inline)) void multiply_tile(int64_t depth, const float* a, int64_t along,
                                                                int64_t across, const float* b, int64_t b_line,
                                                                float* c, int64_t c_line, bool add,
                                                                const Before& before) {
  Floats sum[Rows][Vectors];
#pragma GCC unroll 8
  for (int i = 0; i < Rows; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; ++v) sum[i][v] = add ? load(c + i * c_line + v * kLanes) : splat(0.0f);
  }
  for (int64_t r = 0; r < depth; ++r) {
    before(r);
    Floats line[Vectors];
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; ++v) line[v] = load(b + r * b_line + v * kLanes);
#pragma GCC unroll 8
    for (int i = 0; i < Rows; ++i) {
      const Floats factor = splat(a[i * along + r * across]);
#pragma GCC unroll 4
      for (int v = 0; v < Vectors; ++v) sum[i][v] += factor * line[v];
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < Rows; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; ++v) store(c + i * c_line + v * kLanes, sum[i][v]);
  }
}

// All rows of one column of tiles; the part of B that they use stays in the L1 cache.
template <int Vectors>
static inline void multiply_column(int64_t rows, int64_t depth, const float* a, int64_t along, int64_t across,
                                   const float* b, int64_t b_line, float* c, int64_t c_line, bool add) {
  const auto nothing = [](int64_t) {};
  int64_t i = 0;
  for (; i + kTileRows <= rows; i += kTileRows) {
    multiply_tile<kTileRows, Vectors>(depth, a + i * along, along, across, b, b_line, c + i * c_line, c_line, add,
                                      nothing);
  }
  if (kTileRows > 4 && i + 4 <= rows) {
    multiply_tile<4, Vectors>(depth, a + i * along, along, across, b, b_line, c + i * c_line, c_line, add, nothing);
    i += 4;
  }
  if (i + 2 <= rows) {
    multiply_tile<2, Vectors>(depth, a + i * along, along, across, b, b_line, c + i * c_line, c_line, add, nothing);
    i += 2;
  }
  if (i < rows)
    multiply_tile<1, Vectors>(depth, a + i * along, along, across, b, b_line, c + i * c_line, c_line, add, nothing);
}

// The same for any number of rows; `columns` must be a multiple of kLanes.
static inline void multiply(int64_t rows, int64_t columns, int64_t depth, const float* a, int64_t along, int64_t across,
                            const float* b, int64_t b_line, float* c, int64_t c_line, bool add) {
  int64_t n = 0;
  for (; n + 2 * kLanes <= columns; n += 2 * kLanes) {
    multiply_column<2>(rows, depth, a, along, across, b + n, b_line, c + n, c_line, add);
  }
  if (n < columns) multiply_column<1>(rows, depth, a, along, across, b + n, b_line, c + n, c_line, add);
}

// Selects lanes from a (indices below kLanes) and b.
static inline __attribute__((always_inline)) Floats shuffled(Floats a, Floats b, Ints lanes) {
#if defined(__clang__)  // clang-tidy reads this, too
  Floats result;
  for (int lane = 0; lane < kLanes; ++lane) {
    result[lane] = lanes[lane] < kLanes ? a[lanes[lane]] : b[lanes[lane] - kLanes];
  }
  return result;
#else
  return __builtin_shuffle(a, b, lanes);
#endif
}

// Exchanges the off-diagonal blocks of `Step` lanes between vectors that are Step apart.
template <int Step>
static inline __attribute__((always_inline)) void exchange(Floats* v) {
  Ints low, high;
#pragma GCC unroll 16
  for (int lane = 0; lane < kLanes; ++lane) {
    low[lane] = (lane & Step) == 0 ? lane : static_cast<int>(kLanes) + lane - Step;
    high[lane] = (lane & Step) == 0 ? lane + Step : static_cast<int>(kLanes) + lane;
  }
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) {
    if ((i & Step) != 0) continue;
    const Floats a = v[i], b = v[i + Step];
    v[i] = shuffled(a, b, low);
    v[i + Step] = shuffled(a, b, high);
  }
}

// Transposes kLanes vectors.
static inline __attribute__((always_inline)) void exchange_all(Floats* v) {
  exchange<1>(v);
  exchange<2>(v);
  if constexpr (kLanes >= 8) exchange<4>(v);
  if constexpr (kLanes == 16) exchange<8>(v);
}

// to[j * to_line + i] = from[i * from_line + j], by blocks of kLanes times kLanes; both counts must be multiples of
// kLanes.
static inline void transpose(int64_t rows, int64_t columns, const float* from, int64_t from_line, float* to,
                             int64_t to_line) {
  for (int64_t i = 0; i < rows; i += kLanes) {
    for (int64_t j = 0; j < columns; j += kLanes) {
      Floats v[kLanes];
#pragma GCC unroll 16
      for (int k = 0; k < kLanes; ++k) v[k] = load(from + (i + k) * from_line + j);
      exchange_all(v);
#pragma GCC unroll 16
      for (int k = 0; k < kLanes; ++k) store(to + (j + k) * to_line + i, v[k]);
    }
  }
}

// The sum of each vector's lanes, for kLanes vectors.
static inline Floats sums_of(Floats* v) {
  exchange_all(v);
  Floats sum = v[0];
#pragma GCC unroll 16
  for (int i = 1; i < kLanes; ++i) sum += v[i];
  return sum;
}

static inline float float_of_bfloat16(uint16_t bits) {
  return __builtin_bit_cast(float, static_cast<uint32_t>(bits) << 16);
}
static inline uint16_t bfloat16_of_float(float value) {
  const auto bits = __builtin_bit_cast(uint32_t, value);
  if (value != value) return 0x7FC0;
  return static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}
// Half types, and stores of some lanes, have no portable form that gcc compiles to x86's instructions for them.
// floats_of_halves and floats_of_bfloat16s convert kLanes numbers.
#if defined(__x86_64__)
static inline Floats floats_of_halves(const uint16_t* bits) {
#if defined(__AVX512F__)
  return __builtin_bit_cast(Floats, _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i_u*>(bits))));
#else
  return __builtin_bit_cast(Floats, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i_u*>(bits))));
#endif
}
static inline Floats floats_of_bfloat16s(const uint16_t* bits) {
#if defined(__AVX512F__)
  const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i_u*>(bits)));
  return __builtin_bit_cast(Floats, _mm512_slli_epi32(wide, 16));
#else
  const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i_u*>(bits)));
  return __builtin_bit_cast(Floats, _mm256_slli_epi32(wide, 16));
#endif
}
static inline float float_of_half(uint16_t bits) { return _cvtsh_ss(bits); }
static inline uint16_t half_of_float(float value) { return _cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT); }

// Stores the first `count` lanes, which are fewer than kLanes. `mask` has all bits of these lanes.
static inline void store_lanes(float* data, Floats value, int64_t count, Ints mask) {
#if defined(__AVX512F__)
  (void)mask;
  _mm512_mask_storeu_ps(data, static_cast<__mmask16>((1u << count) - 1), __builtin_bit_cast(__m512, value));
#else
  (void)count;
  _mm256_maskstore_ps(data, __builtin_bit_cast(__m256i, mask), __builtin_bit_cast(__m256, value));
#endif
}
#elif defined(__aarch64__)
static inline Floats floats_of_bfloat16s(const uint16_t* bits) {
  typedef uint16_t Shorts __attribute__((vector_size(kLanes * 2), aligned(2), may_alias));
  return __builtin_bit_cast(Floats, __builtin_convertvector(*reinterpret_cast<const Shorts*>(bits), Ints) << 16);
}
static inline Floats floats_of_halves(const uint16_t* bits) {
  typedef __fp16 Halves __attribute__((vector_size(kLanes * 2), aligned(2), may_alias));
  return __builtin_convertvector(*reinterpret_cast<const Halves*>(bits), Floats);
}
static inline float float_of_half(uint16_t bits) { return __builtin_bit_cast(__fp16, bits); }
static inline uint16_t half_of_float(float value) { return __builtin_bit_cast(uint16_t, static_cast<__fp16>(value)); }
static inline void store_lanes(float* data, Floats value, int64_t count, Ints) {
  for (int64_t lane = 0; lane < count; ++lane) data[lane] = value[lane];
}
#endif

}  // namespace torch_remote::worker::kernels::TORCH_REMOTE_ISA
