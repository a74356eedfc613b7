#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "ir/dtype.h"
#include "ir/ops/scalar_tree.h"

// The properties of each ScalarOp in LoopIR.
namespace torch_remote::codegen {

// Types of the operands of an op.
enum class OperandTypes : uint8_t {
  kNothing,   // the op cannot be in a kernel
  kAny,       // bool, integers, floats
  kNumbers,   // integers, floats
  kIntegers,  // u8 to i64
  kBits,      // bool, integers
  kFloats,    // f32, f64
  kBools,     // bool
};

struct ScalarOpInfo {
  std::string_view name;
  uint8_t arity = 0;
  OperandTypes operand_types = OperandTypes::kNothing;
  bool returns_bool = false;  // its result is bool for all operand types
};

const ScalarOpInfo& info(ir::ScalarOp op);
std::optional<ir::ScalarOp> scalar_op_from_name(std::string_view name);
bool accepts(OperandTypes takes, ir::DType type);
std::string_view name(OperandTypes takes);

inline bool is_half(ir::DType type) { return type == ir::DType::kFloat16 || type == ir::DType::kBFloat16; }
// The type of a value that is loaded from memory of type `memory`.
inline ir::DType loaded_type(ir::DType memory) { return is_half(memory) ? ir::DType::kFloat32 : memory; }
// Whether values can have this type. An operand in memory may have any of ir::is_kernel_dtype, also f16 and bf16.
inline bool is_value_type(ir::DType type) { return ir::is_kernel_dtype(type) && !is_half(type); }
// All types of operands: bit i is DType i, as in ir::Capabilities.
uint64_t memory_types();

}  // namespace torch_remote::codegen
