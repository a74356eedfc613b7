#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace torch_remote::ir {

// Element types. The numbers are those of c10::ScalarType, so that a conversion is a cast. Components that include
// torch check this with a static_assert.
enum class DType : uint8_t {
  kUInt8 = 0,
  kInt8 = 1,
  kInt16 = 2,
  kInt32 = 3,
  kInt64 = 4,
  kFloat16 = 5,
  kFloat32 = 6,
  kFloat64 = 7,
  kComplex32 = 8,
  kComplex64 = 9,
  kComplex128 = 10,
  kBool = 11,
  kBFloat16 = 15,
  kFloat8E5M2 = 23,
  kFloat8E4M3FN = 24,
  kFloat8E5M2FNUZ = 25,
  kFloat8E4M3FNUZ = 26,
  kUInt16 = 27,
  kUInt32 = 28,
  kUInt64 = 29,
  kFloat8E8M0FNU = 44,
};

// Bytes of one element; 0 for a number that is no DType.
uint32_t item_size(DType dtype);

inline bool is_valid(DType dtype) { return item_size(dtype) != 0; }

inline bool is_complex(DType dtype) {
  return dtype == DType::kComplex32 || dtype == DType::kComplex64 || dtype == DType::kComplex128;
}
bool is_float(DType dtype);  // real floating-point types only

// The largest n for which the dtype represents all integers from 0 to n; 0 for complex dtypes.
uint64_t last_integer(DType dtype);

// Short names, which the text form uses: "f32", "i64", "bool", "bf16", "c64"... Empty for an invalid DType.
std::string_view name(DType dtype);
std::optional<DType> dtype_from_name(std::string_view name);

}  // namespace torch_remote::ir
