#include "worker/kernels/pack.h"

#include <algorithm>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace torch_remote::worker::kernels {
namespace {

constexpr int64_t kTile = 16;  // columns at a time: as many lines of the cache are read from

template <typename T>
void pack_columns(const Packing& p, int64_t row, int64_t rows, int64_t column, int64_t columns) {
  const T* const source = static_cast<const T*>(p.source) + row * p.rows_apart + column * p.columns_apart;
  T* const packed = static_cast<T*>(p.packed) + row * p.line + column;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) packed[r * p.line + c] = source[r * p.rows_apart + c * p.columns_apart];
  }
}

#if defined(__SSE2__)
// Four rows and four columns of 32 bits, of rows that are neighbours.
void pack_four(const float* source, int64_t columns_apart, float* packed, int64_t line) {
  __m128 a = _mm_loadu_ps(source), b = _mm_loadu_ps(source + columns_apart);
  __m128 c = _mm_loadu_ps(source + 2 * columns_apart), d = _mm_loadu_ps(source + 3 * columns_apart);
  _MM_TRANSPOSE4_PS(a, b, c, d);
  _mm_storeu_ps(packed, a);
  _mm_storeu_ps(packed + line, b);
  _mm_storeu_ps(packed + 2 * line, c);
  _mm_storeu_ps(packed + 3 * line, d);
}

void pack_words(const Packing& p) {
  const auto* const source = static_cast<const float*>(p.source);
  auto* const packed = static_cast<float*>(p.packed);
  const int64_t rows = p.rows / 4 * 4, columns = p.columns / 4 * 4;
  for (int64_t c = 0; c < columns; c += 4) {
    for (int64_t r = 0; r < rows; r += 4) {
      pack_four(source + r + c * p.columns_apart, p.columns_apart, packed + r * p.line + c, p.line);
    }
  }
  pack_columns<float>(p, rows, p.rows - rows, 0, p.columns);
  pack_columns<float>(p, 0, rows, columns, p.columns - columns);
}
#endif

template <typename T>
void pack_tiles(const Packing& p) {
  for (int64_t c = 0; c < p.columns; c += kTile) {
    const int64_t columns = std::min(kTile, p.columns - c);
    for (int64_t r = 0; r < p.rows; r += kTile) {
      pack_columns<T>(p, r, std::min(kTile, p.rows - r), c, columns);
    }
  }
}

}  // namespace

void pack(const Packing& packing, uint32_t item_size) {
  switch (item_size) {
    case 1:
      return pack_tiles<uint8_t>(packing);
    case 2:
      return pack_tiles<uint16_t>(packing);
    case 4:
#if defined(__SSE2__)
      if (packing.rows_apart == 1) return pack_words(packing);
#endif
      return pack_tiles<uint32_t>(packing);
    default:
      return pack_tiles<uint64_t>(packing);
  }
}

}  // namespace torch_remote::worker::kernels
