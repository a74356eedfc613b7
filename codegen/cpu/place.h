#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "ir/status.h"

namespace torch_remote::codegen::cpu {

// Machine code in memory of its own, which can be executed but no longer written.
class PlacedCode {
 public:
  PlacedCode() = default;
  PlacedCode(PlacedCode&& other) noexcept;
  PlacedCode& operator=(PlacedCode&& other) noexcept;
  ~PlacedCode();

  // Copies the bytes to the beginning of a page.
  static Status place(std::span<const uint8_t> bytes, PlacedCode* code);

  const uint8_t* data() const { return data_; }
  size_t size() const { return size_; }

  // What begins at a byte of it.
  template <typename Function>
  Function function(size_t offset) const {
    return reinterpret_cast<Function>(reinterpret_cast<uintptr_t>(data_) + offset);
  }

 private:
  const uint8_t* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace torch_remote::codegen::cpu
