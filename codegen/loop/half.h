#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

// Conversions between f32 and the f16 and bf16 of memory. They round to nearest even; NaN becomes 0x7E00 or 0x7FC0.
namespace torch_remote::codegen {

inline float from_bf16(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

inline uint16_t to_bf16(float x) {
  if (std::isnan(x)) return 0x7FC0;
  const auto bits = std::bit_cast<uint32_t>(x);
  return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

inline float from_f16(uint16_t bits) {
  const uint32_t sign = uint32_t{bits & 0x8000u} << 16, exponent = bits >> 10 & 31, fraction = bits & 0x3FF;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7F800000 | fraction << 13);
  if (exponent != 0) return std::bit_cast<float>(sign | (exponent + 112) << 23 | fraction << 13);
  const float small = static_cast<float>(fraction) * 0x1p-24f;
  return sign != 0 ? -small : small;
}

inline uint16_t to_f16(float x) {
  if (std::isnan(x)) return 0x7E00;
  const auto bits = std::bit_cast<uint32_t>(x);
  const uint32_t sign = bits >> 16 & 0x8000, magnitude = bits & 0x7FFFFFFF;
  if (magnitude >= 0x47800000) return static_cast<uint16_t>(sign | 0x7C00);  // 65536 and more
  if (magnitude < 0x38800000) {
    // Below the smallest normal number, results are multiples of 2^-24. The addition rounds to such a multiple.
    const float units = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(units) - std::bit_cast<uint32_t>(0.5f)));
  }
  // A carry from rounding increments the exponent, up to infinity.
  return static_cast<uint16_t>(sign | (magnitude - (112u << 23) + 0xFFF + (magnitude >> 13 & 1)) >> 13);
}

}  // namespace torch_remote::codegen
