#pragma once

#include <ATen/WrapDimUtils.h>

#include <span>

#include "frontend/shapes/op_entry.h"

// Declarations that the files of shape rules share.
namespace torch_remote::frontend {

// Returns null for kNone.
ShapeRuleFunction find_shape_rule(ir::ShapeFunction function);

// A function of the op table and its rule here.
struct NamedShapeRule {
  ir::ShapeFunction function;
  ShapeRuleFunction rule;
};
// The rules of each file.
std::span<const NamedShapeRule> data_movement_rules();
std::span<const NamedShapeRule> nn_rules();
std::span<const NamedShapeRule> linalg_rules();

// Our meta function for an op whose meta in torch has other strides than the CPU kernel (missing_metas.cpp). Null if
// there is none.
const c10::KernelFunction* find_custom_meta(ir::Opcode opcode);

// Sets `strides` to those of a contiguous tensor, in elements; a size of 0 counts as 1.
inline void contiguous_strides(c10::IntArrayRef sizes, c10::DimVector& strides) {
  strides.resize(sizes.size());
  int64_t stride = 1;
  for (size_t i = sizes.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= std::max<int64_t>(sizes[i], 1);
  }
}

inline bool is_standard_float(c10::ScalarType t) {
  using enum c10::ScalarType;
  return t == Float || t == Double || t == Half || t == BFloat16;
}

// Whether both are tensors of this device with the same dtype. Callers check that it is a float.
inline bool same_float(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && is_remote(a) && is_remote(b);
}

// Whether the tensor is contiguous, and torch gives results like it the contiguous format. With dims of size 1 a tensor
// may also be contiguous in the channels-last format.
inline bool is_only_contiguous(const at::Tensor& t) {
  return t.suggest_memory_format() == c10::MemoryFormat::Contiguous && t.is_contiguous();
}

// The call's argument `dtype`, or `otherwise` if the op has none or it is None.
inline c10::ScalarType dtype_arg(const OpEntry& op, const c10::IValue* args, c10::ScalarType otherwise) {
  if (op.dtype < 0 || args[op.dtype].isNone()) return otherwise;
  return args[op.dtype].toScalarType();
}

// The items of a list of ints; raises if the value is no list.
inline c10::DimVector int_list(const c10::IValue& value) {
  c10::DimVector list;
  for (const c10::IValue& item : value.toListRef()) list.push_back(item.toInt());
  return list;
}

// Whether an optional tensor argument is given.
inline bool given(const c10::IValue& value) { return !value.isNone() && value.toTensor().defined(); }

// Sets sizes and strides of a TensorIterator result over these operands, at least one. Sizes are broadcast, and the
// operands' order of dims is preserved (TensorIteratorBase::reorder_dimensions). Does not set the dtype. Returns false
// if the sizes do not broadcast; `out` is then undefined. `number`: there is also a number, which torch makes an
// operand of rank 0.
bool broadcast_result(c10::ArrayRef<const at::Tensor*> operands, ResultMeta& out, bool number = false);

// The rule of ops whose result has sizes and dtype of the first argument, and its strides if they are dense. Otherwise
// the result has dense strides in the same order of dims.
bool like_first(const OpEntry& op, const c10::IValue* args, Inferred& out);

// Adds a result over the broadcast operands. A rule that declines may leave a result behind; infer() removes it.
bool add_broadcast(c10::ArrayRef<const at::Tensor*> operands, c10::ScalarType dtype, Inferred& out,
                   bool number = false);

}  // namespace torch_remote::frontend
