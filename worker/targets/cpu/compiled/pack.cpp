#include "worker/targets/cpu/compiled/pack.h"

#include <algorithm>
#include <cstdint>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace torch_remote::worker::kernels {
namespace {

constexpr int64_t kTile = 16;  // columns at a time, each a different cache line

enum class To : uint8_t { kPacked, kStrided };

template <To to, typename T>
void copy_columns(const Packing& p, int64_t row, int64_t rows, int64_t column, int64_t columns) {
  T* const strided = static_cast<T*>(p.strided) + row * p.row_stride + column * p.column_stride;
  T* const packed = static_cast<T*>(p.packed) + row * p.line + column;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) {
      T &there = strided[r * p.row_stride + c * p.column_stride], &here = packed[r * p.line + c];
      if constexpr (to == To::kPacked) {
        here = there;
      } else {
        there = here;
      }
    }
  }
}

#if defined(__SSE2__)
// Transposes four rows of four 32-bit elements.
void transpose_four(const float* from, int64_t from_apart, float* to, int64_t to_apart) {
  __m128 a = _mm_loadu_ps(from), b = _mm_loadu_ps(from + from_apart);
  __m128 c = _mm_loadu_ps(from + 2 * from_apart), d = _mm_loadu_ps(from + 3 * from_apart);
  _MM_TRANSPOSE4_PS(a, b, c, d);
  _mm_storeu_ps(to, a);
  _mm_storeu_ps(to + to_apart, b);
  _mm_storeu_ps(to + 2 * to_apart, c);
  _mm_storeu_ps(to + 3 * to_apart, d);
}

// Copies 32-bit elements of adjacent rows. The columns are too far apart for the hardware prefetcher, so we prefetch
// four columns ahead.
template <To to>
void copy_words(const Packing& p) {
  auto* const strided = static_cast<float*>(p.strided);
  auto* const packed = static_cast<float*>(p.packed);
  const int64_t rows = p.rows / 4 * 4, columns = p.columns / 4 * 4;
  constexpr int64_t kLine = 64 / sizeof(float);
  for (int64_t c = 0; c < columns; c += 4) {
    for (int64_t r = 0; r < rows; r += 4) {
      if (r % kLine == 0 && c + 8 <= columns) {
        for (int64_t next = c + 4; next < c + 8; ++next) {
          __builtin_prefetch(strided + r + next * p.column_stride, to == To::kStrided ? 1 : 0);
        }
      }
      float *const there = strided + r + c * p.column_stride, *const here = packed + r * p.line + c;
      if constexpr (to == To::kPacked) {
        transpose_four(there, p.column_stride, here, p.line);
      } else {
        transpose_four(here, p.line, there, p.column_stride);
      }
    }
  }
  copy_columns<to, float>(p, rows, p.rows - rows, 0, p.columns);
  copy_columns<to, float>(p, 0, rows, columns, p.columns - columns);
}
#endif

template <To to, typename T>
void copy_tiles(const Packing& p) {
  for (int64_t c = 0; c < p.columns; c += kTile) {
    const int64_t columns = std::min(kTile, p.columns - c);
    for (int64_t r = 0; r < p.rows; r += kTile) {
      copy_columns<to, T>(p, r, std::min(kTile, p.rows - r), c, columns);
    }
  }
}

template <To to>
void copy(const Packing& packing, uint32_t item_size) {
  switch (item_size) {
    case 1:
      return copy_tiles<to, uint8_t>(packing);
    case 2:
      return copy_tiles<to, uint16_t>(packing);
    case 4:
#if defined(__SSE2__)
      if (packing.row_stride == 1) return copy_words<to>(packing);
#endif
      return copy_tiles<to, uint32_t>(packing);
    default:
      return copy_tiles<to, uint64_t>(packing);
  }
}

}  // namespace

void pack(const Packing& packing, uint32_t item_size) { copy<To::kPacked>(packing, item_size); }
void unpack(const Packing& packing, uint32_t item_size) { copy<To::kStrided>(packing, item_size); }

}  // namespace torch_remote::worker::kernels
