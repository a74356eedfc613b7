#pragma once

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "codegen/cpu/llvm_builder.h"
#include "codegen/loop/loop_ir.h"

// Translates LoopIR's values to the LLVM dialect. Each function accepts scalars and vectors.
namespace torch_remote::codegen::cpu {

// Instructions that only some targets have.
struct Features {
  bool avx512 = false;  // masked loads and stores of 8 and 16 bits, and scaling by powers of two
  bool masked = false;  // masked loads and stores of 32 and 64 bits
};

class Ops {
 public:
  // `features` are those of the target.
  explicit Ops(LlvmBuilder& builder, Features features = {}) : b(builder), features(features) {}

  LlvmBuilder& b;
  const Features features;

  // -- Types: of a value (bool is i1), and of an element in memory (bool is i8, half types are i16).
  mlir::Type type(ir::DType dtype);
  mlir::Type memory_type(ir::DType dtype);

  // -- Values.
  MlirValue constant(const Value& value, mlir::Type type);  // of the value's type, or of a vector of it
  // A value that depends only on values of this list at the same point: kConvert, kBits, kFma, kLdexp, kScalarOp. `get`
  // returns these values.
  MlirValue computed(const std::vector<Value>& values, const Value& value, llvm::function_ref<MlirValue(uint32_t)> get);
  // `op` must be one that expand_functions() does not replace. `dtype` is that of the operands; for `where`, of the
  // second one.
  MlirValue scalar_op(ir::ScalarOp op, ir::DType dtype, MlirValue x, MlirValue y, MlirValue z);
  MlirValue fma(MlirValue x, MlirValue y, MlirValue z);
  // x * 2^power; both operands have this dtype (see Kind::kLdexp).
  MlirValue ldexp(MlirValue x, MlirValue power, ir::DType dtype);
  // To integers: towards zero; a number that is out of range becomes an arbitrary integer.
  MlirValue convert(MlirValue x, ir::DType from, ir::DType to);
  MlirValue bits(MlirValue x, ir::DType from, ir::DType to);  // of the same width; from or to bool it is convert()
  // Word `number` of the Philox sequence of `seed` and `offset` (ir/philox.h), as i32: block number / 4 has this word
  // and three others. `number` is an i64 or a vector of these, and seed and offset have its type.
  MlirValue random(MlirValue seed, MlirValue offset, MlirValue number);
  // The same for the kLanes numbers first, first + 1, ..., and for 2 * kLanes numbers as two vectors. All arguments are
  // i64. These functions compute each Philox block once, but random() computes it for each of its four numbers.
  MlirValue random_vector(MlirValue seed, MlirValue offset, MlirValue first);
  std::pair<MlirValue, MlirValue> random_vectors(MlirValue seed, MlirValue offset, MlirValue first);
  MlirValue from_memory(MlirValue x, ir::DType memory);
  MlirValue to_memory(MlirValue x, ir::DType memory);
  // NaN if one of them is NaN; y if both are zero.
  MlirValue max(ir::DType dtype, MlirValue x, MlirValue y);
  MlirValue min(ir::DType dtype, MlirValue x, MlirValue y);
  MlirValue is_nan(MlirValue x);  // x is a float
  MlirValue less(ir::DType dtype, MlirValue x, MlirValue y);
  MlirValue equal(MlirValue x, MlirValue y);

  // -- Memory. `memory` is the dtype of the elements.
  MlirValue load(mlir::Type type, MlirValue pointer, ir::DType memory);
  void store(MlirValue value, MlirValue pointer, ir::DType memory);

 private:
  std::array<MlirValue, 4> philox(MlirValue seed, MlirValue offset, MlirValue block);
  // 2 * kLanes words, from the beginning of the block that contains word `first`.
  MlirValue random_blocks(MlirValue seed, MlirValue offset, MlirValue first);
  MlirValue lanes(MlirValue x, MlirValue y, llvm::ArrayRef<int32_t> which);
  // The kLanes words from word `first` on, given random_blocks().
  MlirValue window(MlirValue words, MlirValue first);
  MlirValue scale_vector(MlirValue x, MlirValue power, bool single);
  MlirValue or_nan(MlirValue x, MlirValue y);  // y, but NaN where x is NaN
  MlirValue float_op(ir::ScalarOp op, MlirValue x, MlirValue y);
  MlirValue integer_op(ir::ScalarOp op, ir::DType dtype, MlirValue x, MlirValue y);
  MlirValue bool_op(ir::ScalarOp op, MlirValue x, MlirValue y);
  MlirValue comparison(ir::ScalarOp op, ir::DType dtype, MlirValue x, MlirValue y);
  MlirValue logical(ir::ScalarOp op, ir::DType dtype, MlirValue x, MlirValue y);
  MlirValue quotient(ir::DType dtype, MlirValue x, MlirValue y);
  MlirValue shifted(ir::ScalarOp op, ir::DType dtype, MlirValue x, MlirValue y);
  MlirValue to_integer(MlirValue x, ir::DType to);
  MlirValue round_to_bfloat16(MlirValue x);
};

inline bool is_signed(ir::DType dtype) { return dtype != ir::DType::kUInt8 && dtype != ir::DType::kBool; }

}  // namespace torch_remote::codegen::cpu
