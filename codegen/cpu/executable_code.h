#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "ir/status.h"

namespace torch_remote::codegen::cpu {

// Machine code in its own memory, which is executable and read-only.
class ExecutableCode {
 public:
  ExecutableCode() = default;
  ExecutableCode(ExecutableCode&& other) noexcept;
  ExecutableCode& operator=(ExecutableCode&& other) noexcept;
  ~ExecutableCode();

  // Copies the bytes to new memory, which begins at a page boundary.
  static Status load(std::span<const uint8_t> bytes, ExecutableCode* code);

  const uint8_t* data() const { return data_; }
  size_t size() const { return size_; }

  // The function at this offset.
  template <typename Function>
  Function function(size_t offset) const {
    return reinterpret_cast<Function>(reinterpret_cast<uintptr_t>(data_) + offset);
  }

 private:
  const uint8_t* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace torch_remote::codegen::cpu
