#pragma once

#include "codegen/cpu/ops.h"

// Reductions in the order of docs/loop_ir.md: 32 lanes are two vectors of partial results ("halves").
namespace torch_remote::codegen::cpu {

class Reductions {
 public:
  explicit Reductions(Ops& ops) : ops_(ops) {}

  // How many values a partial result is: that of argmax is a value and its place.
  static size_t parts(const Value& reduce) { return is_arg(reduce) ? 2 : 1; }
  // Whether the order is seen in the result: sums and products of floats.
  static bool is_ordered(const Value& reduce);

  // What `dtype`, the operand's, begins with.
  MlirValue neutral(Reduction reduction, ir::DType dtype, mlir::Type type);
  // Of one half: 0 or 1.
  MlirValues begin(const Value& reduce, ir::DType dtype, int64_t half);
  // With one more element in each lane that is in the mask; `place` is the lanes' place, for argmax.
  MlirValues accumulate(const Value& reduce, ir::DType dtype, mlir::ValueRange before, MlirValue x, MlirValue place,
                        MlirValue mask);
  // Two partial results of the same lanes, the first one's elements first.
  MlirValues combine(const Value& reduce, ir::DType dtype, mlir::ValueRange x, mlir::ValueRange y);
  // The upper half of the lanes is added to the lower one, until there is one.
  MlirValue end(const Value& reduce, ir::DType dtype, mlir::ValueRange low, mlir::ValueRange high);
  // The same of one partial result: once, and until there is one lane.
  MlirValues halved(const Value& reduce, ir::DType dtype, const MlirValues& lanes);
  MlirValue fold(const Value& reduce, ir::DType dtype, MlirValues lanes);

 private:
  static bool is_arg(const Value& reduce) {
    return reduce.reduction == Reduction::kArgMax || reduce.reduction == Reduction::kArgMin;
  }
  MlirValue better(const Value& reduce, ir::DType dtype, MlirValue x, MlirValue than);
  MlirValues choose(MlirValue condition, mlir::ValueRange x, mlir::ValueRange y);

  Ops& ops_;
};

}  // namespace torch_remote::codegen::cpu
