#pragma once

#include <cstdint>

#include "llvm/ADT/STLFunctionalExtras.h"
#include "llvm/ADT/SmallVector.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/IR/ImplicitLocOpBuilder.h"

// Builds instructions, addresses and control flow of the LLVM dialect. All compilers use it.
namespace torch_remote::codegen::cpu {

inline constexpr int64_t kLanes = 16;  // of a vector

using MlirValue = mlir::Value;
using MlirValues = llvm::SmallVector<mlir::Value, 4>;

mlir::VectorType vector_of(mlir::Type element, int64_t lanes = kLanes);
// The type of `element` or of a vector of it, as wide as `like`.
mlir::Type same_width(mlir::Type like, mlir::Type element);

// Operands are scalars or vectors.
class LlvmBuilder : public mlir::ImplicitLocOpBuilder {
 public:
  using mlir::ImplicitLocOpBuilder::ImplicitLocOpBuilder;

  // -- Constants of a scalar type, or of a vector type with the same number in all lanes.
  MlirValue number(mlir::Type type, double value);
  MlirValue integer(mlir::Type type, int64_t value);
  MlirValue i32(int64_t value) { return integer(getI32Type(), value); }
  MlirValue i64(int64_t value) { return integer(getI64Type(), value); }
  // Vectors of kLanes lanes: the numbers first, first + 1, ..., or `scalar` in all lanes.
  MlirValue ramp(mlir::Type element, int64_t first);
  MlirValue splat(MlirValue scalar);

  // -- Instructions. The operands of arithmetic and comparisons are integers.
  MlirValue add(MlirValue x, MlirValue y);
  MlirValue sub(MlirValue x, MlirValue y);
  MlirValue mul(MlirValue x, MlirValue y);
  MlirValue divide(MlirValue x, MlirValue y);  // in this and divide_up(), x and y are not negative
  MlirValue divide_up(MlirValue x, MlirValue y);
  MlirValue bit_and(MlirValue x, MlirValue y);
  MlirValue bit_or(MlirValue x, MlirValue y);
  MlirValue bit_xor(MlirValue x, MlirValue y);
  MlirValue compare(mlir::LLVM::ICmpPredicate predicate, MlirValue x, MlirValue y);
  MlirValue less_than(MlirValue x, MlirValue y);  // compares signed integers
  MlirValue is_zero(MlirValue x);
  MlirValue select(MlirValue condition, MlirValue x, MlirValue y);
  MlirValue at(MlirValue pointer, mlir::Type element, MlirValue index);  // address of an element

  // -- Control flow. Loops over begin, begin + step, ... below `end`. `body` returns the next values of `carried`.
  using Body = llvm::function_ref<MlirValues(MlirValue index, mlir::ValueRange carried)>;
  MlirValues loop(MlirValue begin, MlirValue end, int64_t step, mlir::ValueRange carried, Body body);
  MlirValues loop(MlirValue begin, MlirValue end, MlirValue step, mlir::ValueRange carried, Body body);
  using Arm = llvm::function_ref<MlirValues()>;
  // Both arms return values of the same types. `rare`: the first arm is seldom taken.
  MlirValues branch(MlirValue condition, Arm yes, Arm no, mlir::TypeRange types, bool rare);
  void if_then(MlirValue condition, bool rare, llvm::function_ref<void()> yes);
  // Returns the results of `yes` if the condition is true, else `otherwise`.
  MlirValues if_then_else(MlirValue condition, mlir::ValueRange otherwise, Arm yes);

 private:
  MlirValue constant(mlir::Type type, mlir::Attribute element);
  // Calls `step` after `body`.
  MlirValues loop_by(llvm::function_ref<MlirValue()> step, MlirValue begin, MlirValue end, mlir::ValueRange carried,
                     Body body);
  mlir::Block* new_block(mlir::TypeRange types);
};

}  // namespace torch_remote::codegen::cpu
