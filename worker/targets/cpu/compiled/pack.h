#pragma once

#include <cstddef>
#include <cstdint>

namespace torch_remote::worker::kernels {

// Elements that lie across, and where they are wanted side by side: element (row, column) is `rows_apart` * row +
// `columns_apart` * column elements behind `across`, and `line` * row + column elements behind `packed`.
struct Packing {
  void* across = nullptr;
  int64_t rows_apart = 1, columns_apart = 0;
  void* packed = nullptr;
  int64_t line = 0;
  int64_t rows = 0, columns = 0;
};

// Copy elements of 1, 2, 4 or 8 bytes, tile by tile: from where they lie across, and back.
void pack(const Packing& packing, uint32_t item_size);
void unpack(const Packing& packing, uint32_t item_size);

}  // namespace torch_remote::worker::kernels
