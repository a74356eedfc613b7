#pragma once

#include <sys/sysinfo.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

// Caches released memory for the next attachment of the same size class, because its pages are already mapped.
namespace torch_remote::remote {

// Attachments of at least this many bytes get a segment of their own.
inline constexpr size_t kSmallAttachment = 32 << 10;
// Most unused bytes that one end of a connection caches.
inline constexpr size_t kMaxPooledBytes = size_t{512} << 20;
inline constexpr size_t kAttachmentAlignment = 64;

// Requests for more than the machine has are refused at once. The kernel would overcommit, and kill the process when it
// touches the memory.
inline size_t physical_memory() {
  static const size_t bytes = [] {
    struct sysinfo info;
    return sysinfo(&info) == 0 ? (info.totalram + info.totalswap) * info.mem_unit : SIZE_MAX / 2;
  }();
  return bytes;
}

// Rounds up to 4, 5, 6 or 7 times a power of two, at least to 4096. From 256 KiB on the result is a multiple of 64 KiB.
// Similar sizes share memory, and above 4096 bytes at most a fifth of it is unused.
inline size_t size_class(size_t size) {
  if (size <= 4096) return 4096;
  const size_t step = std::bit_floor(size - 1) / 4;
  return (size + step - 1) / step * step;
}

// A pool of objects T that own memory and free it in their destructor. Not thread safe.
template <class T>
class MemoryPool {
 public:
  // Returns the entry of this size that was added last, or T() if there is none.
  T take(size_t size) {
    for (size_t i = entries_.size(); i-- > 0;) {
      if (entries_[i].first != size) continue;
      T memory = std::move(entries_[i].second);
      entries_.erase(entries_.begin() + static_cast<ptrdiff_t>(i));
      bytes_ -= size;
      return memory;
    }
    return T();
  }

  // Adds an entry. Entries beyond the limit move to `evicted`, oldest first.
  void put(size_t size, T memory, std::vector<T>* evicted) {
    entries_.emplace_back(size, std::move(memory));
    bytes_ += size;
    size_t count = 0;
    for (; bytes_ > kMaxPooledBytes; ++count) {
      bytes_ -= entries_[count].first;
      evicted->push_back(std::move(entries_[count].second));
    }
    entries_.erase(entries_.begin(), entries_.begin() + static_cast<ptrdiff_t>(count));
  }

 private:
  std::vector<std::pair<size_t, T>> entries_;  // oldest first; a few hundred at most
  size_t bytes_ = 0;
};

}  // namespace torch_remote::remote
