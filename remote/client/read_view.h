#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace torch_remote::remote {

// A view of a buffer: sizes and strides in elements.
struct ReadView {
  uint64_t buffer;
  uint32_t item_size;
  std::span<const int64_t> sizes, strides;
  int64_t offset;
};

// Bytes of the elements, packed, and of the buffer as far as the last of them. False if they are none that a tensor
// has.
bool extent(const ReadView& view, uint64_t* packed, uint64_t* end);

// Copies the view's elements, packed. `from`: the first one.
void gather(const ReadView& view, const std::byte* from, std::byte* to);

// The elements are one piece of memory, in row-major order.
bool is_contiguous(std::span<const int64_t> sizes, std::span<const int64_t> strides);

}  // namespace torch_remote::remote
