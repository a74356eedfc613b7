#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "ir/status.h"
#include "remote/transport/transport.h"

namespace torch_remote::remote {

// A view of a buffer; sizes, strides and offset are in elements.
struct ReadView {
  uint64_t buffer;
  uint32_t item_size;
  std::span<const int64_t> sizes, strides;
  int64_t offset;
};

// Sets *packed to the number of bytes of the view's elements, and *end to the number of bytes of the buffer up to the
// end of the last element. *end is UINT64_MAX if the view reaches before the buffer or the number overflows. Returns
// false for sizes that no tensor has.
bool measure(const ReadView& view, uint64_t* packed, uint64_t* end);

// Copies the view's elements, packed. `from` points to the first one.
void copy_packed(const ReadView& view, const std::byte* from, std::byte* to);

// Whether the elements are contiguous in row-major order.
bool is_contiguous(std::span<const int64_t> sizes, std::span<const int64_t> strides);

// Checks that the reply to a read has `expected` bytes. Fails with kOutOfMemory if this end had no memory for them.
Status check_size(const Frame& reply, uint64_t expected);

}  // namespace torch_remote::remote
