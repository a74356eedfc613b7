#include "ir/dtype.h"

#include <iterator>

namespace torch_remote::ir {
namespace {

struct DTypeInfo {
  DType dtype;
  uint8_t size;
  std::string_view name;
};

constexpr DTypeInfo kInfos[] = {
    {DType::kUInt8, 1, "u8"},
    {DType::kInt8, 1, "i8"},
    {DType::kInt16, 2, "i16"},
    {DType::kInt32, 4, "i32"},
    {DType::kInt64, 8, "i64"},
    {DType::kFloat16, 2, "f16"},
    {DType::kFloat32, 4, "f32"},
    {DType::kFloat64, 8, "f64"},
    {DType::kComplex32, 4, "c32"},
    {DType::kComplex64, 8, "c64"},
    {DType::kComplex128, 16, "c128"},
    {DType::kBool, 1, "bool"},
    {DType::kBFloat16, 2, "bf16"},
    {DType::kFloat8E5M2, 1, "f8e5m2"},
    {DType::kFloat8E4M3FN, 1, "f8e4m3fn"},
    {DType::kFloat8E5M2FNUZ, 1, "f8e5m2fnuz"},
    {DType::kFloat8E4M3FNUZ, 1, "f8e4m3fnuz"},
    {DType::kUInt16, 2, "u16"},
    {DType::kUInt32, 4, "u32"},
    {DType::kUInt64, 8, "u64"},
    {DType::kFloat8E8M0FNU, 1, "f8e8m0fnu"},
};

// Indexed by the DType's number; a number without a DType has size 0.
struct ByNumber {
  DTypeInfo infos[256] = {};
  constexpr ByNumber() {
    for (const DTypeInfo& info : kInfos) infos[static_cast<size_t>(info.dtype)] = info;
  }
};
constexpr ByNumber kByNumber;

}  // namespace

uint32_t item_size(DType dtype) { return kByNumber.infos[static_cast<uint8_t>(dtype)].size; }

std::string_view name(DType dtype) { return kByNumber.infos[static_cast<uint8_t>(dtype)].name; }

std::optional<DType> dtype_from_name(std::string_view name) {
  for (const DTypeInfo& info : kInfos) {
    if (info.name == name) return info.dtype;
  }
  return std::nullopt;
}

bool is_float(DType dtype) {
  switch (dtype) {
    case DType::kFloat16:
    case DType::kFloat32:
    case DType::kFloat64:
    case DType::kBFloat16:
    case DType::kFloat8E5M2:
    case DType::kFloat8E4M3FN:
    case DType::kFloat8E5M2FNUZ:
    case DType::kFloat8E4M3FNUZ:
    case DType::kFloat8E8M0FNU:
      return true;
    default:
      return false;
  }
}

uint64_t last_integer(DType dtype) {
  if (is_complex(dtype)) return 0;
  switch (dtype) {
    case DType::kBool:
      return 1;
    case DType::kFloat64:
      return uint64_t{1} << 53;
    case DType::kFloat32:
      return uint64_t{1} << 24;
    case DType::kFloat16:
      return uint64_t{1} << 11;
    case DType::kBFloat16:
      return uint64_t{1} << 8;
    case DType::kUInt8:
    case DType::kUInt16:
    case DType::kUInt32:
    case DType::kUInt64:
      return ~uint64_t{0} >> (64 - 8 * item_size(dtype));
    default:
      return (uint64_t{1} << (8 * item_size(dtype) - 1)) - 1;
  }
}

}  // namespace torch_remote::ir
