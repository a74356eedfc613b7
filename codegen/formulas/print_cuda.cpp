#include "codegen/formulas/print_cuda.h"

#include <cmath>
#include <cstdio>
#include <utility>
#include <vector>

#include "codegen/loop/scalar_ops.h"

namespace torch_remote::codegen::formulas {

using ir::DType;
using ir::ScalarOp;

std::string join(std::initializer_list<std::string_view> parts) {
  std::string all;
  for (const std::string_view part : parts) all += part;
  return all;
}

namespace {

std::string_view cuda_type(DType type) {
  switch (type) {
    case DType::kBool:
      return "bool";
    case DType::kUInt8:
      return "unsigned char";
    case DType::kInt8:
      return "signed char";
    case DType::kInt16:
      return "short";
    case DType::kInt32:
      return "int";
    case DType::kInt64:
      return "long";
    case DType::kFloat32:
      return "float";
    default:
      return "double";
  }
}

std::string cast(DType type, std::string_view x) { return join({"static_cast<", cuda_type(type), ">(", x, ")"}); }

std::string_view space_of(DType type) {
  return type == DType::kFloat32 ? "f32" : type == DType::kFloat64 ? "f64" : "i64";
}

std::string constant(const Value& value) {
  if (!ir::is_float(value.type)) {
    return cast(value.type, std::to_string(static_cast<uint64_t>(value.integer)) + "UL");
  }
  const bool single = value.type == DType::kFloat32;
  if (std::isnan(value.number)) return single ? "__builtin_nanf(\"\")" : "__builtin_nan(\"\")";
  if (std::isinf(value.number)) {
    return join({value.number < 0 ? "-" : "", single ? "__builtin_inff()" : "__builtin_inf()"});
  }
  char text[40];
  std::snprintf(text, sizeof(text), "%a", value.number);
  return single ? cast(value.type, text) : text;
}

// How an op is written in C++.
enum class Form : uint8_t {
  kSign,        // operator of floats, and of integers, which wrap around
  kComparison,  // operator whose result is a bool
  kBits,        // operator of integers and bools
  kFunction,    // function of operations.h
  kBuiltin,     // function of the compiler, for floats
};
struct Spelling {
  ScalarOp op;
  Form form;
  std::string_view text;
};
constexpr Spelling kSpellings[] = {
    {ScalarOp::kAdd, Form::kSign, " + "},
    {ScalarOp::kSub, Form::kSign, " - "},
    {ScalarOp::kMul, Form::kSign, " * "},
    {ScalarOp::kEq, Form::kComparison, " == "},
    {ScalarOp::kNe, Form::kComparison, " != "},
    {ScalarOp::kLt, Form::kComparison, " < "},
    {ScalarOp::kLe, Form::kComparison, " <= "},
    {ScalarOp::kGt, Form::kComparison, " > "},
    {ScalarOp::kGe, Form::kComparison, " >= "},
    {ScalarOp::kLogicalAnd, Form::kComparison, " & "},
    {ScalarOp::kLogicalOr, Form::kComparison, " | "},
    {ScalarOp::kLogicalXor, Form::kComparison, " != "},
    {ScalarOp::kBitAnd, Form::kBits, " & "},
    {ScalarOp::kBitOr, Form::kBits, " | "},
    {ScalarOp::kBitXor, Form::kBits, " ^ "},
    {ScalarOp::kMax, Form::kFunction, "max"},
    {ScalarOp::kMin, Form::kFunction, "min"},
    {ScalarOp::kFmax, Form::kFunction, "fmax"},
    {ScalarOp::kFmin, Form::kFunction, "fmin"},
    {ScalarOp::kShiftLeft, Form::kFunction, "shift_left"},
    {ScalarOp::kShiftRight, Form::kFunction, "shift_right"},
    {ScalarOp::kAbs, Form::kBuiltin, "__builtin_fabs"},
    {ScalarOp::kCeil, Form::kBuiltin, "__builtin_ceil"},
    {ScalarOp::kCopysign, Form::kBuiltin, "__builtin_copysign"},
    {ScalarOp::kFloor, Form::kBuiltin, "__builtin_floor"},
    {ScalarOp::kRound, Form::kBuiltin, "__builtin_rint"},
    {ScalarOp::kSqrt, Form::kBuiltin, "__builtin_sqrt"},
    {ScalarOp::kTrunc, Form::kBuiltin, "__builtin_trunc"},
};

// The text of an op in this form; empty if the op has another form.
std::string_view spelling(ScalarOp op, Form form) {
  for (const Spelling& row : kSpellings) {
    if (row.op == op && row.form == form) return row.text;
  }
  return {};
}

constexpr std::string_view kParameters[] = {"x", "y"};

// Prints the statements that compute a value of a kernel from its scalars x and y, and return it as `type`. Functions
// that LoopIR must expand are calls of those that `print_function` prints.
class Printer {
 public:
  explicit Printer(const Kernel& kernel) : kernel_(kernel) {}

  std::string run(uint32_t result, DType type) {
    std::vector<bool> used(kernel_.values.size());
    used[result] = true;
    for (uint32_t i = result + 1; i-- > 0;) {
      if (used[i]) use_operands(kernel_.values[i], used);
    }
    std::string text;
    for (uint32_t i = 0; i <= result; ++i) {
      if (!used[i]) continue;
      const Value& value = kernel_.values[i];
      text += join({"  const ", cuda_type(value.type), " ", name(i), " = ", expression(value), ";\n"});
    }
    return text + join({"  return ", converted(kernel_.values[result].type, type, name(result)), ";\n"});
  }

 private:
  static std::string name(uint32_t value) { return "v" + std::to_string(value); }

  static void use_operands(const Value& value, std::vector<bool>& used) {
    if (value.kind == Kind::kScalar) return;
    for (const uint32_t operand : {value.a, value.b, value.c}) {
      if (operand != kNone) used[operand] = true;
    }
  }

  static std::string converted(DType from, DType to, const std::string& x) {
    if (from == to) return x;
    if (to == DType::kBool) return x + " != 0";
    // Narrow integers are the low bits of a wide one.
    const bool narrows = ir::is_float(from) && !ir::is_float(to) && ir::item_size(to) < 4;
    return cast(to, narrows ? cast(DType::kInt32, x) : x);
  }

  std::string expression(const Value& value) const {
    const std::string a = name(value.a), b = name(value.b), c = name(value.c);
    const bool single = value.type == DType::kFloat32;
    switch (value.kind) {
      case Kind::kConstant:
        return constant(value);
      case Kind::kScalar:
        return cast(value.type, kParameters[value.a]);
      case Kind::kConvert:
        return converted(kernel_.values[value.a].type, value.type, a);
      case Kind::kBits: {
        const DType from = kernel_.values[value.a].type;
        if (from == DType::kBool || value.type == DType::kBool) return converted(from, value.type, a);
        return join({"__builtin_bit_cast(", cuda_type(value.type), ", ", a, ")"});
      }
      case Kind::kFma:
        return join({single ? "__builtin_fmaf(" : "__builtin_fma(", a, ", ", b, ", ", c, ")"});
      case Kind::kLdexp:
        return join({"ldexp(", a, ", ", b, ")"});
      default:
        return operation(value, a, b, c);
    }
  }

  std::string operation(const Value& value, const std::string& a, const std::string& b, const std::string& c) const {
    const DType type = kernel_.values[value.typed()].type;
    if (value.op == ScalarOp::kWhere) return join({a, " ? ", b, " : ", c});
    if (value.op == ScalarOp::kLogicalNot) return "!" + a;
    if (const auto sign = spelling(value.op, Form::kComparison); !sign.empty()) return join({a, sign, b});
    if (const auto name = spelling(value.op, Form::kFunction); !name.empty()) return join({name, "(", a, ", ", b, ")"});
    if (const auto sign = spelling(value.op, Form::kBits); !sign.empty()) return cast(type, a + std::string(sign) + b);
    if (value.op == ScalarOp::kBitNot) return type == DType::kBool ? "!" + a : cast(type, "~" + a);
    if (!ir::is_float(type)) {
      const auto wide = [](const std::string& x) { return join({"static_cast<unsigned long>(", x, ")"}); };
      if (const auto sign = spelling(value.op, Form::kSign); !sign.empty()) {
        return cast(type, wide(a) + std::string(sign) + wide(b));
      }
      if (value.op == ScalarOp::kNeg) return cast(type, "0 - " + wide(a));
      if (value.op == ScalarOp::kAbs) return join({a, " < 0 ? ", cast(type, "0 - " + wide(a)), " : ", a});
      if (value.op == ScalarOp::kDiv) return join({"quotient(", a, ", ", b, ")"});
    } else {
      if (const auto sign = spelling(value.op, Form::kSign); !sign.empty()) return join({a, sign, b});
      if (value.op == ScalarOp::kNeg) return "-" + a;
      if (value.op == ScalarOp::kDiv) return join({a, " / ", b});
      if (const auto name = spelling(value.op, Form::kBuiltin); !name.empty()) {
        return join({name, type == DType::kFloat32 ? "f(" : "(", a, info(value.op).arity > 1 ? ", " + b : "", ")"});
      }
    }
    return join({space_of(type), "::", info(value.op).name, "(", a, info(value.op).arity > 1 ? ", " + b : "", ")"});
  }

  const Kernel& kernel_;
};

}  // namespace

Kernel kernel_of(ScalarOp op, DType type) {
  const ScalarOpInfo& facts = info(op);
  Kernel kernel;
  for (uint32_t i = 0; i < facts.arity; ++i) {
    kernel.values.push_back({.kind = Kind::kScalar, .type = type, .a = i});
  }
  const DType made = facts.returns_bool ? DType::kBool : type;
  kernel.values.push_back({.kind = Kind::kScalarOp, .type = made, .op = op, .a = 0, .b = facts.arity > 1 ? 1 : kNone});
  kernel.stores.push_back({.operand = 0, .value = facts.arity, .indices = {}});
  return kernel;
}

std::string print_function(ScalarOp op, DType type) {
  const ScalarOpInfo& facts = info(op);
  if (facts.arity == 0 || op == ScalarOp::kWhere || !accepts(facts.operand_types, type)) return {};
  Kernel kernel = kernel_of(op, type);
  const std::vector<Value> values = kernel.values;
  const DType made = values.back().type;
  expand_functions(kernel);
  if (kernel.values == values) return {};
  std::string parameters;
  for (uint32_t i = 0; i < facts.arity; ++i) {
    parameters += join({i == 0 ? "" : ", ", cuda_type(type), " ", kParameters[i]});
  }
  return join({"namespace ", space_of(type), " {\n", "__device__ INLINE ", cuda_type(made), " ", facts.name, "(",
               parameters, ") {\n", Printer(kernel).run(kernel.stores[0].value, made), "}\n}\n"});
}

std::string print_apply(DType type) {
  const std::string_view cuda = cuda_type(type);
  std::string text =
      join({"__device__ INLINE ", cuda, " apply(int op, ", cuda, " x, ", cuda, " y) {\n  switch (op) {\n"});
  for (uint32_t op = 0; op < static_cast<uint32_t>(ScalarOp::kWhere); ++op) {
    const auto which = static_cast<ScalarOp>(op);
    const ScalarOpInfo& facts = info(which);
    const bool of_bools = type == DType::kInt64 && facts.operand_types == OperandTypes::kBools;
    if (facts.arity == 0 || !(of_bools || accepts(facts.operand_types, type))) continue;
    const Kernel kernel = kernel_of(which, of_bools ? DType::kBool : type);
    text += join({"  case ", std::to_string(op), ": {  // ", facts.name, "\n",
                  Printer(kernel).run(kernel.stores[0].value, type), "  }\n"});
  }
  text += "  default:\n    return 0;\n  }\n}\n";
  if (!ir::is_float(type)) return text;
  Kernel kernel;
  kernel.values = log_add_exp(type);
  const auto result = static_cast<uint32_t>(kernel.values.size()) - 1;
  return text + join({"__device__ INLINE ", cuda, " log_add_exp(", cuda, " x, ", cuda, " y) {\n",
                      Printer(kernel).run(result, type), "}\n"});
}

}  // namespace torch_remote::codegen::formulas
