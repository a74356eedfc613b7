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
    {"neg", 1, OperandTypes::kNumbers},
    {"add", 2, OperandTypes::kNumbers},
    {"sub", 2, OperandTypes::kNumbers},
    {"mul", 2, OperandTypes::kNumbers},
    {"div", 2, OperandTypes::kNumbers},
    {"eq", 2, OperandTypes::kAny, true},
    {"ne", 2, OperandTypes::kAny, true},
    {"lt", 2, OperandTypes::kAny, true},
    {"le", 2, OperandTypes::kAny, true},
    {"gt", 2, OperandTypes::kAny, true},
    {"ge", 2, OperandTypes::kAny, true},
    {"abs", 1, OperandTypes::kNumbers},
    {"acos", 1, OperandTypes::kFloats},
    {"acosh", 1, OperandTypes::kFloats},
    {"asin", 1, OperandTypes::kFloats},
    {"asinh", 1, OperandTypes::kFloats},
    {"atan", 1, OperandTypes::kFloats},
    {"atan2", 2, OperandTypes::kFloats},
    {"atanh", 1, OperandTypes::kFloats},
    {"bit_and", 2, OperandTypes::kBits},
    {"bit_not", 1, OperandTypes::kBits},
    {"bit_or", 2, OperandTypes::kBits},
    {"bit_xor", 2, OperandTypes::kBits},
    {"ceil", 1, OperandTypes::kFloats},
    {"copysign", 2, OperandTypes::kFloats},
    {"cos", 1, OperandTypes::kFloats},
    {"cosh", 1, OperandTypes::kFloats},
    {"erf", 1, OperandTypes::kFloats},
    {"erfc", 1, OperandTypes::kFloats},
    {"exp", 1, OperandTypes::kFloats},
    {"exp2", 1, OperandTypes::kFloats},
    {"expm1", 1, OperandTypes::kFloats},
    {"floor", 1, OperandTypes::kFloats},
    {"floor_div", 2, OperandTypes::kNumbers},
    {"fmax", 2, OperandTypes::kAny},
    {"fmin", 2, OperandTypes::kAny},
    {"fmod", 2, OperandTypes::kNumbers},
    {"hypot", 2, OperandTypes::kFloats},
    {"is_inf", 1, OperandTypes::kFloats, true},
    {"is_nan", 1, OperandTypes::kFloats, true},
    {"lgamma", 1, OperandTypes::kFloats},
    {"log", 1, OperandTypes::kFloats},
    {"log10", 1, OperandTypes::kFloats},
    {"log1p", 1, OperandTypes::kFloats},
    {"log2", 1, OperandTypes::kFloats},
    {"logical_and", 2, OperandTypes::kBools},
    {"logical_not", 1, OperandTypes::kBools},
    {"logical_or", 2, OperandTypes::kBools},
    {"logical_xor", 2, OperandTypes::kBools},
    {"max", 2, OperandTypes::kAny},
    {"min", 2, OperandTypes::kAny},
    {"pow", 2, OperandTypes::kNumbers},
    {"reciprocal", 1, OperandTypes::kFloats},
    {"remainder", 2, OperandTypes::kNumbers},
    {"round", 1, OperandTypes::kFloats},
    {"rsqrt", 1, OperandTypes::kFloats},
    {"shift_left", 2, OperandTypes::kIntegers},
    {"shift_right", 2, OperandTypes::kIntegers},
    {"sigmoid", 1, OperandTypes::kFloats},
    {"sign", 1, OperandTypes::kNumbers},
    {"sin", 1, OperandTypes::kFloats},
    {"sinh", 1, OperandTypes::kFloats},
    {"sqrt", 1, OperandTypes::kFloats},
    {"tan", 1, OperandTypes::kFloats},
    {"tanh", 1, OperandTypes::kFloats},
    {"trunc", 1, OperandTypes::kFloats},
    {"where", 3, OperandTypes::kAny},
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

uint64_t memory_types() {
  uint64_t types = 0;
  for (uint8_t i = 0; i < 64; ++i) {
    if (ir::is_kernel_dtype(static_cast<DType>(i))) types |= uint64_t{1} << i;
  }
  return types;
}

bool accepts(OperandTypes takes, DType type) {
  if (!is_value_type(type)) return false;
  switch (takes) {
    case OperandTypes::kNothing:
      return false;
    case OperandTypes::kAny:
      return true;
    case OperandTypes::kNumbers:
      return type != DType::kBool;
    case OperandTypes::kIntegers:
      return type != DType::kBool && !ir::is_float(type);
    case OperandTypes::kBits:
      return !ir::is_float(type);
    case OperandTypes::kFloats:
      return ir::is_float(type);
    case OperandTypes::kBools:
      return type == DType::kBool;
  }
  return false;
}

std::string_view name(OperandTypes takes) {
  static constexpr std::string_view kNames[] = {"nothing",          "any type",   "numbers", "integers",
                                                "integers or bool", "f32 or f64", "bool"};
  return kNames[static_cast<size_t>(takes)];
}

}  // namespace torch_remote::codegen
