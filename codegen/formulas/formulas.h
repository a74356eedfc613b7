#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "codegen/loop/loop_ir.h"
#include "ir/ops/op_table.h"

// The formulas of elementwise ops as LoopIR, made by the lowering of the ops. The formula of an expression
// (OpDesc::tree) serves all overloads that have it.
namespace torch_remote::codegen::formulas {

inline constexpr uint32_t kMaxOperands = 4;
// The types that formulas are computed in. Other dtypes are converted to one of them.
inline constexpr ir::DType kTypes[] = {ir::DType::kFloat32, ir::DType::kFloat64, ir::DType::kInt64};

// A formula in one type: the value that the first store of the kernel has.
struct TypedFormula {
  Kernel kernel;
  std::vector<uint32_t> loads, scalars;  // for each operand and scalar of the kernel: the operand of the formula
};

struct Formula {
  std::string name;  // a C++ enumerator: "kFmod"
  std::string text;  // the expression
  std::vector<ir::Opcode> opcodes;
  std::optional<TypedFormula> typed[std::size(kTypes)];  // none: the op does not compute in this type
};

// Whether the value is an integer division, which is an error of the op if the divisor (Value::b) is 0.
bool divides_integers(const Value& value);

// All formulas, in an order that depends on the op table alone.
std::vector<Formula> all_formulas();

}  // namespace torch_remote::codegen::formulas
