#pragma once

#include "codegen/cpu/ops.h"

// Reductions in the order that docs/loop_ir.md defines. The 32 lanes are two vectors of partial results ("halves").
namespace torch_remote::codegen::cpu {

class Reductions {
 public:
  explicit Reductions(Ops& ops) : ops_(ops), b_(ops.b) {}

  // The number of values in a partial result: for argmax and argmin, a value and its position.
  static size_t parts(const Value& reduce) { return is_arg(reduce) ? 2 : 1; }
  // Whether the order affects the result, as it does for sums and products of floats.
  static bool is_ordered(const Value& reduce);

  // The initial value of a reduction whose operand has this dtype.
  MlirValue neutral(Reduction reduction, ir::DType dtype, mlir::Type type);
  // The initial partial result of one half (0 or 1).
  MlirValues begin(const Value& reduce, ir::DType dtype, int64_t half);
  // Adds one element to each lane in `mask` (null: all lanes). `place` has the lanes' positions, for argmax and argmin.
  MlirValues accumulate(const Value& reduce, ir::DType dtype, mlir::ValueRange before, MlirValue x, MlirValue place,
                        MlirValue mask);
  // Combines two partial results of the same lanes, with `x` as the first operand.
  MlirValues combine(const Value& reduce, ir::DType dtype, mlir::ValueRange x, mlir::ValueRange y);
  // Combines both vectors, then combines the upper half of the lanes with the lower half until one lane is left.
  MlirValue end(const Value& reduce, ir::DType dtype, mlir::ValueRange low, mlir::ValueRange high);
  // The same steps for one partial result: `halved` halves it once, `fold` continues until one lane is left.
  MlirValues halved(const Value& reduce, ir::DType dtype, const MlirValues& lanes);
  MlirValue fold(const Value& reduce, ir::DType dtype, MlirValues lanes);

 private:
  static bool is_arg(const Value& reduce) {
    return reduce.reduction == Reduction::kArgMax || reduce.reduction == Reduction::kArgMin;
  }
  MlirValue better(const Value& reduce, ir::DType dtype, MlirValue x, MlirValue than);
  MlirValues choose(MlirValue condition, mlir::ValueRange x, mlir::ValueRange y);

  Ops& ops_;
  LlvmBuilder& b_;
};

}  // namespace torch_remote::codegen::cpu
