#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

// Packing elements that lie anywhere in this machine's memory.
namespace torch_remote::worker {

// Runs body(begin, end) over parts of [0, count), on several threads where the parts are at least `grain`; returns when
// all of it was done.
using ParallelFor =
    std::function<void(int64_t count, int64_t grain, const std::function<void(int64_t begin, int64_t end)>& body)>;

// Copies elements of `item_size` bytes (1, 2, 4, 8 or 16), `sizes` of them, `strides` apart (in elements, 0 and more;
// one a size), into packed memory, row-major. An element may lie at any address. Without `parallel`: on this thread.
void copy_strided(const void* source, std::byte* destination, uint32_t item_size, std::span<const int64_t> sizes,
                  std::span<const int64_t> strides, const ParallelFor& parallel = nullptr);

}  // namespace torch_remote::worker
