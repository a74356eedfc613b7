#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

// Copies strided elements in this machine's memory to packed memory.
namespace torch_remote::worker {

// Runs body(begin, end) over parts of [0, count), on several threads if the parts have at least `grain` elements.
// Returns when all parts are done.
using ParallelFor =
    std::function<void(int64_t count, int64_t grain, const std::function<void(int64_t begin, int64_t end)>& body)>;

// Copies elements of `item_size` bytes (1, 2, 4, 8 or 16) into packed, row-major memory. There is one stride per size,
// in elements, 0 or more. Elements need not be aligned. Without `parallel`, the copy uses this thread only.
void copy_strided(const void* source, std::byte* destination, uint32_t item_size, std::span<const int64_t> sizes,
                  std::span<const int64_t> strides, const ParallelFor& parallel = nullptr);

}  // namespace torch_remote::worker
