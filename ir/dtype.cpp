#include "ir/dtype.h"

#include <iterator>

namespace torch_remote::ir {
namespace {

struct DTypeInfo {
  DType dtype;
  uint8_t size;
  std::string_view name;
  bool is_float = false;
  bool is_in_kernels = false;
};

constexpr DTypeInfo kInfos[] = {
    {DType::kUInt8, 1, "u8", false, true},
    {DType::kInt8, 1, "i8", false, true},
    {DType::kInt16, 2, "i16", false, true},
    {DType::kInt32, 4, "i32", false, true},
    {DType::kInt64, 8, "i64", false, true},
    {DType::kFloat16, 2, "f16", true, true},
    {DType::kFloat32, 4, "f32", true, true},
    {DType::kFloat64, 8, "f64", true, true},
    {DType::kComplex32, 4, "c32"},
    {DType::kComplex64, 8, "c64"},
    {DType::kComplex128, 16, "c128"},
    {DType::kBool, 1, "bool", false, true},
    {DType::kBFloat16, 2, "bf16", true, true},
    {DType::kFloat8E5M2, 1, "f8e5m2", true},
    {DType::kFloat8E4M3FN, 1, "f8e4m3fn", true},
    {DType::kFloat8E5M2FNUZ, 1, "f8e5m2fnuz", true},
    {DType::kFloat8E4M3FNUZ, 1, "f8e4m3fnuz", true},
    {DType::kUInt16, 2, "u16"},
    {DType::kUInt32, 4, "u32"},
    {DType::kUInt64, 8, "u64"},
    {DType::kFloat8E8M0FNU, 1, "f8e8m0fnu", true},
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

bool is_float(DType dtype) { return kByNumber.infos[static_cast<uint8_t>(dtype)].is_float; }

bool is_kernel_dtype(DType dtype) { return kByNumber.infos[static_cast<uint8_t>(dtype)].is_in_kernels; }

}  // namespace torch_remote::ir
