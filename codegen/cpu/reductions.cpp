#include "codegen/cpu/reductions.h"

#include <limits>

namespace torch_remote::codegen::cpu {

using ir::DType;
using ir::ScalarOp;
namespace ll = mlir::LLVM;

bool Reductions::is_ordered(const Value& reduce) {
  const bool adds = reduce.reduction == Reduction::kSum || reduce.reduction == Reduction::kProduct;
  return adds && ir::is_float(reduce.type);
}

MlirValue Reductions::neutral(Reduction reduction, DType dtype, mlir::Type type) {
  const bool of_floats = ir::is_float(dtype);
  if (reduction == Reduction::kSum || reduction == Reduction::kProduct) {
    const int64_t value = reduction == Reduction::kProduct;
    return of_floats ? b_.number(type, static_cast<double>(value)) : b_.integer(type, value);
  }
  const bool largest = reduction == Reduction::kMin || reduction == Reduction::kArgMin;
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (of_floats) return b_.number(type, largest ? kInfinity : -kInfinity);
  if (!is_signed(dtype)) return b_.integer(type, largest ? -1 : 0);
  const int64_t lowest = int64_t{-1} << (8 * ir::item_size(dtype) - 1);
  return b_.integer(type, largest ? ~lowest : lowest);
}

// For argmax, a lane starts with the position of its own first element, which is before all its other positions. This
// element then replaces the initial value, or equals it and has this position already.
MlirValues Reductions::begin(const Value& reduce, DType dtype, int64_t half) {
  MlirValues result{neutral(reduce.reduction, dtype, vector_of(ops_.type(dtype)))};
  if (is_arg(reduce)) result.push_back(b_.ramp(b_.getI64Type(), half * kLanes));
  return result;
}

MlirValue Reductions::better(const Value& reduce, DType dtype, MlirValue x, MlirValue than) {
  const bool most = reduce.reduction == Reduction::kArgMax;
  MlirValue result = most ? ops_.less(dtype, than, x) : ops_.less(dtype, x, than);
  if (!ir::is_float(dtype)) return result;
  // NaN is better than any number.
  MlirValue number = b_.create<ll::FCmpOp>(ll::FCmpPredicate::ord, than, than);
  return b_.bit_or(result, b_.bit_and(ops_.is_nan(x), number));
}

MlirValues Reductions::choose(MlirValue condition, mlir::ValueRange x, mlir::ValueRange y) {
  MlirValues result;
  for (size_t i = 0; i < x.size(); ++i) result.push_back(b_.select(condition, x[i], y[i]));
  return result;
}

MlirValues Reductions::accumulate(const Value& reduce, DType dtype, mlir::ValueRange before, MlirValue x,
                                  MlirValue place, MlirValue mask) {
  if (is_arg(reduce)) {
    MlirValue replace = better(reduce, dtype, x, before[0]);
    return choose(mask ? b_.bit_and(replace, mask) : replace, MlirValues{x, place}, before);
  }
  MlirValues after = combine(reduce, dtype, before, x);
  return mask ? choose(mask, after, before) : after;
}

MlirValues Reductions::combine(const Value& reduce, DType dtype, mlir::ValueRange x, mlir::ValueRange y) {
  switch (reduce.reduction) {
    case Reduction::kSum:
      return {ops_.scalar_op(ScalarOp::kAdd, dtype, x[0], y[0], {})};
    case Reduction::kProduct:
      return {ops_.scalar_op(ScalarOp::kMul, dtype, x[0], y[0], {})};
    case Reduction::kMax:
      return {ops_.max(dtype, x[0], y[0])};
    case Reduction::kMin:
      return {ops_.min(dtype, x[0], y[0])};
    case Reduction::kArgMax:
    case Reduction::kArgMin:
    case Reduction::kLogSumExp:  // exists only as a running reduction
      break;
  }
  MlirValue same = ops_.equal(x[0], y[0]);
  if (ir::is_float(dtype)) same = b_.bit_or(same, b_.bit_and(ops_.is_nan(x[0]), ops_.is_nan(y[0])));
  MlirValue earlier = b_.less_than(y[1], x[1]);
  return choose(b_.bit_or(better(reduce, dtype, y[0], x[0]), b_.bit_and(same, earlier)), y, x);
}

MlirValues Reductions::halved(const Value& reduce, DType dtype, const MlirValues& lanes) {
  const auto half = static_cast<int32_t>(llvm::cast<mlir::VectorType>(lanes[0].getType()).getNumElements() / 2);
  MlirValues lower, upper;
  llvm::SmallVector<int32_t, kLanes> first, second;
  for (int32_t lane = 0; lane < half; ++lane) first.push_back(lane), second.push_back(half + lane);
  for (MlirValue part : lanes) {
    lower.push_back(b_.create<ll::ShuffleVectorOp>(part, part, first));
    upper.push_back(b_.create<ll::ShuffleVectorOp>(part, part, second));
  }
  return combine(reduce, dtype, lower, upper);
}

MlirValue Reductions::fold(const Value& reduce, DType dtype, MlirValues lanes) {
  while (llvm::cast<mlir::VectorType>(lanes[0].getType()).getNumElements() > 1) lanes = halved(reduce, dtype, lanes);
  return b_.create<ll::ExtractElementOp>(lanes.back(), b_.i32(0));
}

MlirValue Reductions::end(const Value& reduce, DType dtype, mlir::ValueRange low, mlir::ValueRange high) {
  return fold(reduce, dtype, combine(reduce, dtype, low, high));
}

}  // namespace torch_remote::codegen::cpu
