#pragma once

#include <array>
#include <cstdint>
#include <utility>

#include "codegen/loop/loop_ir.h"
#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/STLFunctionalExtras.h"
#include "llvm/ADT/SmallVector.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/IR/ImplicitLocOpBuilder.h"

// Translates LoopIR's values to the LLVM dialect. Each function accepts scalars and vectors.
namespace torch_remote::codegen::cpu {

inline constexpr int64_t kLanes = 16;  // of a vector

// Instructions that only some targets have.
struct Features {
  bool avx512 = false;  // masked loads and stores of 8 and 16 bits, and scaling by powers of two
};

using MlirValue = mlir::Value;
using MlirValues = llvm::SmallVector<mlir::Value, 4>;

class Ops {
 public:
  // `features` are those of the target.
  explicit Ops(mlir::ImplicitLocOpBuilder& builder, Features features = {}) : b(builder), features(features) {}

  mlir::ImplicitLocOpBuilder& b;
  const Features features;

  // -- Types: of a value (bool is i1), and of an element in memory (bool is i8, half types are i16).
  mlir::Type type(ir::DType dtype);
  mlir::Type memory_type(ir::DType dtype);
  static mlir::VectorType vector_of(mlir::Type element, int64_t lanes = kLanes);
  // The type of `element` or of a vector of it, as wide as `like`.
  static mlir::Type same_width(mlir::Type like, mlir::Type element);

  // -- Constants of a scalar type, or of a vector type with the same number in all lanes.
  MlirValue number(mlir::Type type, double value);
  MlirValue integer(mlir::Type type, int64_t value);
  MlirValue i64(int64_t value) { return integer(b.getI64Type(), value); }
  // The vector first, first + 1, ...
  MlirValue ramp(mlir::Type element, int64_t first);
  MlirValue splat(MlirValue scalar);

  // -- Values.
  // `dtype` is that of the operands; for `where`, of the second one.
  MlirValue scalar_op(ir::ScalarOp op, ir::DType dtype, MlirValue x, MlirValue y, MlirValue z);
  MlirValue fma(MlirValue x, MlirValue y, MlirValue z);
  MlirValue ldexp(MlirValue x, MlirValue power, ir::DType dtype);
  MlirValue convert(MlirValue x, ir::DType from, ir::DType to);
  MlirValue bits(MlirValue x, ir::DType from, ir::DType to);
  MlirValue random(MlirValue seed, MlirValue offset, MlirValue number);
  // The same for a vector of the numbers first, first + 1, ..., or for two such vectors. All arguments are scalars. A
  // Philox block has the words of four numbers, so each block is computed only once.
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

  MlirValue add(MlirValue x, MlirValue y);  // this and the next functions, up to compare(), are for integers
  MlirValue sub(MlirValue x, MlirValue y);
  MlirValue mul(MlirValue x, MlirValue y);
  MlirValue bit_and(MlirValue x, MlirValue y);
  MlirValue bit_or(MlirValue x, MlirValue y);
  MlirValue bit_xor(MlirValue x, MlirValue y);
  MlirValue compare(mlir::LLVM::ICmpPredicate predicate, MlirValue x, MlirValue y);
  MlirValue select(MlirValue condition, MlirValue x, MlirValue y);

  // -- Memory.
  MlirValue at(MlirValue pointer, mlir::Type element, MlirValue index);  // address of an element
  MlirValue load(mlir::Type type, MlirValue pointer, ir::DType memory);
  void store(MlirValue value, MlirValue pointer, ir::DType memory);

  // -- Control flow. Loops over begin, begin + step, ... below `end`. `body` returns the next values of `carried`.
  using Body = llvm::function_ref<MlirValues(MlirValue index, mlir::ValueRange carried)>;
  MlirValues loop(MlirValue begin, MlirValue end, int64_t step, mlir::ValueRange carried, Body body);
  using Arm = llvm::function_ref<MlirValues()>;
  // Both arms return values of the same types. `rare`: the first arm is seldom taken.
  MlirValues branch(MlirValue condition, Arm yes, Arm no, mlir::TypeRange types, bool rare);
  void if_then(MlirValue condition, bool rare, llvm::function_ref<void()> yes);

 private:
  std::array<MlirValue, 4> philox(MlirValue seed, MlirValue offset, MlirValue block);
  MlirValue random_blocks(MlirValue seed, MlirValue offset, MlirValue first);
  MlirValue lanes(MlirValue x, MlirValue y, llvm::ArrayRef<int32_t> which);
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
  mlir::Block* new_block(mlir::TypeRange types);
};

inline bool is_integer(ir::DType dtype) { return !ir::is_float(dtype) && dtype != ir::DType::kBool; }
inline bool is_signed(ir::DType dtype) { return dtype != ir::DType::kUInt8 && dtype != ir::DType::kBool; }

}  // namespace torch_remote::codegen::cpu
