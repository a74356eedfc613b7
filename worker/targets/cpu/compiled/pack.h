#pragma once

#include <cstddef>
#include <cstdint>

namespace torch_remote::worker::kernels {

// A strided matrix and its row-major copy. Element (row, column) is `row_stride` * row + `column_stride` * column
// elements after `strided`, and `line` * row + column elements after `packed`.
struct Packing {
  void* strided = nullptr;
  int64_t row_stride = 1, column_stride = 0;
  void* packed = nullptr;
  int64_t line = 0;
  int64_t rows = 0, columns = 0;
};

// Copy elements of 1, 2, 4 or 8 bytes, tile by tile: `pack` to the row-major copy, `unpack` back.
void pack(const Packing& packing, uint32_t item_size);
void unpack(const Packing& packing, uint32_t item_size);

}  // namespace torch_remote::worker::kernels
