#pragma once

#include <cstddef>
#include <memory>
#include <new>

namespace torch_remote::worker::kernels {

inline constexpr size_t kLineAlign = 64;

// Memory that a thread reuses between calls. get() returns at least `bytes`, aligned to a cache line. The contents are
// undefined, and a later get() may move the memory. Not thread safe.
class Scratch {
 public:
  std::byte* get(size_t bytes) {
    if (bytes > size_) {
      memory_.reset(static_cast<std::byte*>(::operator new(bytes, std::align_val_t{kLineAlign})));
      size_ = bytes;
    }
    return memory_.get();
  }

 private:
  struct Free {
    void operator()(std::byte* data) const { ::operator delete(data, std::align_val_t{kLineAlign}); }
  };
  std::unique_ptr<std::byte, Free> memory_;
  size_t size_ = 0;
};

}  // namespace torch_remote::worker::kernels
