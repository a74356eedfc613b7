#include "codegen/loop/scalar_ops.h"

#include <iterator>

namespace torch_remote::codegen {
namespace {

using ir::DType;
using ir::ScalarOp;

// Indexed by ScalarOp.
constexpr ScalarOpInfo kInfos[] = {
    {},
    {},
    {},
    {},
    {"neg", 1, Takes::kNumbers},
    {"add", 2, Takes::kNumbers},
    {"sub", 2, Takes::kNumbers},
    {"mul", 2, Takes::kNumbers},
    {"div", 2, Takes::kNumbers},
    {"eq", 2, Takes::kAny, true},
    {"ne", 2, Takes::kAny, true},
    {"lt", 2, Takes::kAny, true},
    {"le", 2, Takes::kAny, true},
    {"gt", 2, Takes::kAny, true},
    {"ge", 2, Takes::kAny, true},
    {"abs", 1, Takes::kNumbers},
    {"acos", 1, Takes::kFloats},
    {"acosh", 1, Takes::kFloats},
    {"asin", 1, Takes::kFloats},
    {"asinh", 1, Takes::kFloats},
    {"atan", 1, Takes::kFloats},
    {"atan2", 2, Takes::kFloats},
    {"atanh", 1, Takes::kFloats},
    {"bit_and", 2, Takes::kBits},
    {"bit_not", 1, Takes::kBits},
    {"bit_or", 2, Takes::kBits},
    {"bit_xor", 2, Takes::kBits},
    {"ceil", 1, Takes::kFloats},
    {"copysign", 2, Takes::kFloats},
    {"cos", 1, Takes::kFloats},
    {"cosh", 1, Takes::kFloats},
    {"erf", 1, Takes::kFloats},
    {"erfc", 1, Takes::kFloats},
    {"exp", 1, Takes::kFloats},
    {"exp2", 1, Takes::kFloats},
    {"expm1", 1, Takes::kFloats},
    {"floor", 1, Takes::kFloats},
    {"floor_div", 2, Takes::kNumbers},
    {"fmax", 2, Takes::kAny},
    {"fmin", 2, Takes::kAny},
    {"fmod", 2, Takes::kNumbers},
    {"hypot", 2, Takes::kFloats},
    {"is_inf", 1, Takes::kFloats, true},
    {"is_nan", 1, Takes::kFloats, true},
    {"lgamma", 1, Takes::kFloats},
    {"log", 1, Takes::kFloats},
    {"log10", 1, Takes::kFloats},
    {"log1p", 1, Takes::kFloats},
    {"log2", 1, Takes::kFloats},
    {"logical_and", 2, Takes::kBools},
    {"logical_not", 1, Takes::kBools},
    {"logical_or", 2, Takes::kBools},
    {"logical_xor", 2, Takes::kBools},
    {"max", 2, Takes::kAny},
    {"min", 2, Takes::kAny},
    {"pow", 2, Takes::kNumbers},
    {"reciprocal", 1, Takes::kFloats},
    {"remainder", 2, Takes::kNumbers},
    {"round", 1, Takes::kFloats},
    {"rsqrt", 1, Takes::kFloats},
    {"shift_left", 2, Takes::kIntegers},
    {"shift_right", 2, Takes::kIntegers},
    {"sigmoid", 1, Takes::kFloats},
    {"sign", 1, Takes::kNumbers},
    {"sin", 1, Takes::kFloats},
    {"sinh", 1, Takes::kFloats},
    {"sqrt", 1, Takes::kFloats},
    {"tan", 1, Takes::kFloats},
    {"tanh", 1, Takes::kFloats},
    {"trunc", 1, Takes::kFloats},
    {"where", 3, Takes::kAny},
};
constexpr size_t kOps = static_cast<size_t>(ScalarOp::kWhere) + 1;
static_assert(std::size(kInfos) == kOps);

}  // namespace

const ScalarOpInfo& info(ScalarOp op) {
  const auto index = static_cast<size_t>(op);
  return index < kOps ? kInfos[index] : kInfos[0];
}

std::optional<ScalarOp> scalar_op_from_name(std::string_view name) {
  for (size_t i = 0; i < kOps; ++i) {
    if (kInfos[i].arity != 0 && kInfos[i].name == name) return static_cast<ScalarOp>(i);
  }
  return std::nullopt;
}

bool is_value_type(DType type) {
  switch (type) {
    case DType::kBool:
    case DType::kUInt8:
    case DType::kInt8:
    case DType::kInt16:
    case DType::kInt32:
    case DType::kInt64:
    case DType::kFloat32:
    case DType::kFloat64:
      return true;
    default:
      return false;
  }
}

uint64_t memory_types() {
  uint64_t types = 0;
  for (uint8_t i = 0; i < 64; ++i) {
    if (is_memory_type(static_cast<DType>(i))) types |= uint64_t{1} << i;
  }
  return types;
}

bool accepts(Takes takes, DType type) {
  if (!is_value_type(type)) return false;
  switch (takes) {
    case Takes::kNothing:
      return false;
    case Takes::kAny:
      return true;
    case Takes::kNumbers:
      return type != DType::kBool;
    case Takes::kIntegers:
      return type != DType::kBool && !ir::is_float(type);
    case Takes::kBits:
      return !ir::is_float(type);
    case Takes::kFloats:
      return ir::is_float(type);
    case Takes::kBools:
      return type == DType::kBool;
  }
  return false;
}

std::string_view name(Takes takes) {
  static constexpr std::string_view kNames[] = {"nothing",          "any type",   "numbers", "integers",
                                                "integers or bool", "f32 or f64", "bool"};
  return kNames[static_cast<size_t>(takes)];
}

}  // namespace torch_remote::codegen
