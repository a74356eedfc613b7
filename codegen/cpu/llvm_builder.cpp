#include "codegen/cpu/llvm_builder.h"

#include <optional>
#include <utility>

#include "mlir/IR/TypeUtilities.h"

namespace torch_remote::codegen::cpu {

namespace ll = mlir::LLVM;
using Int = ll::ICmpPredicate;

mlir::VectorType vector_of(mlir::Type element, int64_t lanes) { return mlir::VectorType::get({lanes}, element); }

mlir::Type same_width(mlir::Type like, mlir::Type element) {
  if (auto vector = llvm::dyn_cast<mlir::VectorType>(like)) return mlir::VectorType::get(vector.getShape(), element);
  return element;
}

// -- Constants --------------------------------------------------------------------------------------------------------

MlirValue LlvmBuilder::constant(mlir::Type type, mlir::Attribute element) {
  if (auto vector = llvm::dyn_cast<mlir::VectorType>(type)) element = mlir::DenseElementsAttr::get(vector, element);
  return create<ll::ConstantOp>(type, element);
}

MlirValue LlvmBuilder::number(mlir::Type type, double value) {
  return constant(type, getFloatAttr(mlir::getElementTypeOrSelf(type), value));
}

MlirValue LlvmBuilder::integer(mlir::Type type, int64_t value) {
  const mlir::Type element = mlir::getElementTypeOrSelf(type);
  const llvm::APInt bits = llvm::APInt(64, static_cast<uint64_t>(value)).trunc(element.getIntOrFloatBitWidth());
  return constant(type, getIntegerAttr(element, bits));
}

MlirValue LlvmBuilder::ramp(mlir::Type element, int64_t first) {
  llvm::SmallVector<mlir::Attribute, kLanes> lanes;
  for (int64_t lane = 0; lane < kLanes; ++lane) lanes.push_back(getIntegerAttr(element, first + lane));
  const mlir::VectorType type = vector_of(element);
  return create<ll::ConstantOp>(type, mlir::DenseElementsAttr::get(type, lanes));
}

MlirValue LlvmBuilder::splat(MlirValue scalar) {
  const mlir::VectorType type = vector_of(scalar.getType());
  MlirValue one = create<ll::InsertElementOp>(create<ll::UndefOp>(type), scalar, i32(0));
  return create<ll::ShuffleVectorOp>(one, one, llvm::SmallVector<int32_t, kLanes>(kLanes, 0));
}

// -- Instructions -----------------------------------------------------------------------------------------------------

MlirValue LlvmBuilder::add(MlirValue x, MlirValue y) { return create<ll::AddOp>(x, y); }
MlirValue LlvmBuilder::sub(MlirValue x, MlirValue y) { return create<ll::SubOp>(x, y); }
MlirValue LlvmBuilder::mul(MlirValue x, MlirValue y) { return create<ll::MulOp>(x, y); }
MlirValue LlvmBuilder::divide(MlirValue x, MlirValue y) { return create<ll::UDivOp>(x, y); }
MlirValue LlvmBuilder::divide_up(MlirValue x, MlirValue y) { return divide(add(x, sub(y, i64(1))), y); }
MlirValue LlvmBuilder::bit_and(MlirValue x, MlirValue y) { return create<ll::AndOp>(x, y); }
MlirValue LlvmBuilder::bit_or(MlirValue x, MlirValue y) { return create<ll::OrOp>(x, y); }
MlirValue LlvmBuilder::bit_xor(MlirValue x, MlirValue y) { return create<ll::XOrOp>(x, y); }
MlirValue LlvmBuilder::compare(Int predicate, MlirValue x, MlirValue y) { return create<ll::ICmpOp>(predicate, x, y); }
MlirValue LlvmBuilder::less_than(MlirValue x, MlirValue y) { return compare(Int::slt, x, y); }
MlirValue LlvmBuilder::is_zero(MlirValue x) { return compare(Int::eq, x, integer(x.getType(), 0)); }

MlirValue LlvmBuilder::select(MlirValue condition, MlirValue x, MlirValue y) {
  return create<ll::SelectOp>(condition, x, y);
}

MlirValue LlvmBuilder::at(MlirValue pointer, mlir::Type element, MlirValue index) {
  const mlir::Type type = same_width(index.getType(), pointer.getType());
  return create<ll::GEPOp>(type, element, pointer, mlir::ValueRange(index));
}

// -- Control flow -----------------------------------------------------------------------------------------------------

mlir::Block* LlvmBuilder::new_block(mlir::TypeRange types) {
  const InsertionGuard guard(*this);
  mlir::Region* region = getInsertionBlock()->getParent();
  return createBlock(region, region->end(), types, llvm::SmallVector<mlir::Location, 4>(types.size(), getLoc()));
}

MlirValues LlvmBuilder::loop(MlirValue begin, MlirValue end, int64_t step, mlir::ValueRange carried, Body body) {
  return loop_by([&] { return i64(step); }, begin, end, carried, body);
}

MlirValues LlvmBuilder::loop(MlirValue begin, MlirValue end, MlirValue step, mlir::ValueRange carried, Body body) {
  return loop_by([&] { return step; }, begin, end, carried, body);
}

// The condition is tested at the end of the loop, as in optimized code.
MlirValues LlvmBuilder::loop_by(llvm::function_ref<MlirValue()> step, MlirValue begin, MlirValue end,
                                mlir::ValueRange carried, Body body) {
  llvm::SmallVector<mlir::Type, 4> types(carried.getTypes());
  mlir::Block* exit = new_block(types);
  types.insert(types.begin(), begin.getType());
  mlir::Block* inside = new_block(types);
  MlirValues first(carried);
  first.insert(first.begin(), begin);
  create<ll::CondBrOp>(less_than(begin, end), inside, first, exit, carried);

  setInsertionPointToStart(inside);
  MlirValue index = inside->getArgument(0);
  MlirValues next = body(index, inside->getArguments().drop_front());
  MlirValue following = add(index, step());
  MlirValues again = next;
  again.insert(again.begin(), following);
  create<ll::CondBrOp>(less_than(following, end), inside, again, exit, next);
  setInsertionPointToStart(exit);
  return MlirValues(exit->getArguments());
}

MlirValues LlvmBuilder::branch(MlirValue condition, Arm yes, Arm no, mlir::TypeRange types, bool rare) {
  mlir::Block* after = new_block(types);
  mlir::Block* then = new_block({});
  mlir::Block* otherwise = new_block({});
  std::optional<std::pair<uint32_t, uint32_t>> weights;
  if (rare) weights = {1, 10000};
  create<ll::CondBrOp>(condition, then, mlir::ValueRange(), otherwise, mlir::ValueRange(), weights);
  setInsertionPointToStart(then);
  create<ll::BrOp>(yes(), after);
  setInsertionPointToStart(otherwise);
  create<ll::BrOp>(no(), after);
  setInsertionPointToStart(after);
  return MlirValues(after->getArguments());
}

void LlvmBuilder::if_then(MlirValue condition, bool rare, llvm::function_ref<void()> yes) {
  branch(
      condition,
      [&] {
        yes();
        return MlirValues();
      },
      [] { return MlirValues(); }, {}, rare);
}

MlirValues LlvmBuilder::if_then_else(MlirValue condition, mlir::ValueRange otherwise, Arm yes) {
  MlirValues kept(otherwise);
  const llvm::SmallVector<mlir::Type, 4> types(otherwise.getTypes());
  return branch(condition, yes, [&] { return kept; }, types, false);
}

}  // namespace torch_remote::codegen::cpu
