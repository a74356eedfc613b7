#include <bit>
#include <charconv>
#include <cmath>
#include <tuple>

#include "codegen/loop/loop_ir.h"
#include "codegen/loop/scalar_ops.h"

// Prints the text form; docs/loop_ir.md has its grammar.
namespace torch_remote::codegen {
namespace {

using ir::DType;

// The shortest decimal that reads back as the same double, with a point or an exponent.
std::string float_literal(double number) {
  if (std::isnan(number)) return "nan";
  if (std::isinf(number)) return number < 0 ? "-inf" : "inf";
  char digits[40];
  std::string text(digits, std::to_chars(digits, digits + sizeof(digits), number).ptr);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

std::string value_name(uint32_t value) { return "%" + std::to_string(value); }
std::string operand_name(uint32_t operand) { return "a" + std::to_string(operand); }

std::string dim_name(const Kernel& kernel, uint32_t dim) {
  return dim < kernel.rows ? "i" + std::to_string(dim) : "j" + std::to_string(dim - kernel.rows);
}

std::string list(const std::vector<uint32_t>& values) {
  std::string text;
  for (const uint32_t value : values) text += (text.empty() ? "" : ", ") + value_name(value);
  return text;
}

std::string place(uint32_t operand, const std::vector<uint32_t>& indices) {
  return operand_name(operand) + (indices.empty() ? "" : "[" + list(indices) + "]");
}

std::string constant(const Value& value) {
  if (value.type == DType::kBool) return value.integer != 0 ? "true" : "false";
  return accepts(OperandTypes::kFloats, value.type) ? float_literal(value.number) : std::to_string(value.integer);
}

std::string operand(const Kernel& kernel, const Operand& operand) {
  std::string dims;
  const auto add = [&](const std::string& dim) { dims += (dims.empty() ? "" : ", ") + dim; };
  for (uint32_t i = 0; i < operand.indexed; ++i) add("_");
  for (uint32_t dim = 0; dim < kernel.dims(); ++dim) {
    if ((operand.dims >> dim & 1) != 0) add(dim_name(kernel, dim));
  }
  return std::string(name(operand.dtype)) + "[" + dims + (operand.strided ? "*]" : "]");
}

std::string definition(const Kernel& kernel, const Value& value) {
  const std::string kind(name(value.kind));
  switch (value.kind) {
    case Kind::kConstant:
      return kind + " " + constant(value);
    case Kind::kScalar:
      return kind + " s" + std::to_string(value.a);
    case Kind::kIndex:
      return kind + " " + dim_name(kernel, value.a);
    case Kind::kLoad:
      return kind + " " + place(value.operand, value.indices);
    case Kind::kConvert:
    case Kind::kBits:
      return kind + " " + value_name(value.a);
    case Kind::kLdexp:
      return kind + " " + list({value.a, value.b});
    case Kind::kFma:
    case Kind::kRandom:
      return kind + " " + list({value.a, value.b, value.c});
    case Kind::kReduce:
      return std::string(name(value.over)) + " " + std::string(name(value.reduction)) + " " + value_name(value.a);
    case Kind::kRunning:
      return kind + " " + std::string(name(value.reduction)) + " " + value_name(value.a);
    case Kind::kScalarOp:
      break;
  }
  std::vector<uint32_t> operands = {value.a, value.b, value.c};
  operands.resize(info(value.op).arity);
  return std::string(info(value.op).name) + " " + list(operands);
}

}  // namespace

bool Value::operator==(const Value& other) const {
  const auto rest = [](const Value& v) {
    return std::tie(v.kind, v.type, v.op, v.reduction, v.over, v.a, v.b, v.c, v.operand, v.indices, v.integer);
  };
  const bool same_number = std::bit_cast<uint64_t>(number) == std::bit_cast<uint64_t>(other.number) ||
                           (std::isnan(number) && std::isnan(other.number));
  return same_number && rest(*this) == rest(other);
}

std::string_view name(Over over) {
  static constexpr std::string_view kNames[] = {"columns", "rows", "lines"};
  return kNames[static_cast<size_t>(over)];
}

std::string_view name(Kind kind) {
  static constexpr std::string_view kNames[] = {"constant",  "scalar", "index", "load",   "convert", "bits",
                                                "scalar_op", "fma",    "ldexp", "reduce", "random",  "running"};
  return kNames[static_cast<size_t>(kind)];
}

std::string_view name(Reduction reduction) {
  static constexpr std::string_view kNames[] = {"sum", "product", "max", "min", "argmax", "argmin", "logsumexp"};
  return kNames[static_cast<size_t>(reduction)];
}

std::string print(const Kernel& kernel) {
  std::string text = "kernel(";
  for (uint32_t i = 0; i < kernel.rows; ++i) text += (i == 0 ? "" : ", ") + dim_name(kernel, i);
  text += kernel.rows == 0 ? "|" : " |";
  for (uint32_t i = 0; i < kernel.columns; ++i) text += (i == 0 ? " " : ", ") + dim_name(kernel, kernel.rows + i);
  text += ") {\n";
  for (size_t i = 0; i < kernel.scalars.size(); ++i) {
    text += "  s" + std::to_string(i) + ": " + std::string(name(kernel.scalars[i])) + "\n";
  }
  for (uint32_t i = 0; i < kernel.operands.size(); ++i) {
    text += "  " + operand_name(i) + ": " + operand(kernel, kernel.operands[i]) + "\n";
  }
  for (uint32_t i = 0; i < kernel.values.size(); ++i) {
    const Value& value = kernel.values[i];
    text += "  " + value_name(i) + ": " + std::string(name(value.type)) + " = " + definition(kernel, value) + "\n";
  }
  for (const Store& store : kernel.stores) {
    text += "  store " + place(store.operand, store.indices) + ", " + value_name(store.value) +
            (store.adds ? " adds\n" : "\n");
  }
  return text + "}\n";
}

}  // namespace torch_remote::codegen
