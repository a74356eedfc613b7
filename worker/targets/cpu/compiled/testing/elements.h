#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

// Reads and writes elements in memory as floats, by the dtype names of graph text. `i` counts elements.
namespace torch_remote::worker::kernels::testing {

// Bytes of an element of f32, bf16, f16 or bool.
inline size_t item(const std::string& dtype) { return dtype == "f32" ? 4 : dtype == "bool" ? 1 : 2; }

// Writes an element of f32, bf16 (truncated, not rounded), f16 or bool (whether the value is not 0).
inline void write(std::vector<std::byte>& bytes, size_t i, float value, const std::string& dtype) {
  if (dtype == "f32") std::memcpy(&bytes[i * 4], &value, 4);
  if (dtype == "bool") bytes[i] = std::byte(value != 0);
  if (dtype == "bf16") {
    const auto half = static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16);
    std::memcpy(&bytes[i * 2], &half, 2);
  }
  if (dtype == "f16") {
    const auto half = static_cast<_Float16>(value);
    std::memcpy(&bytes[i * 2], &half, 2);
  }
}

// Reads an element of f32, bf16 or f16.
inline float read(const std::vector<std::byte>& bytes, size_t i, const std::string& dtype) {
  if (dtype == "f32") {
    float value = 0;
    std::memcpy(&value, &bytes[i * 4], 4);
    return value;
  }
  uint16_t half = 0;
  std::memcpy(&half, &bytes[i * 2], 2);
  return dtype == "bf16" ? std::bit_cast<float>(uint32_t{half} << 16)
                         : static_cast<float>(std::bit_cast<_Float16>(half));
}

}  // namespace torch_remote::worker::kernels::testing
