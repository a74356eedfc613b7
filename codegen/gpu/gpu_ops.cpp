#include "codegen/gpu/gpu_ops.h"

#include "mlir/Dialect/LLVMIR/NVVMDialect.h"

namespace torch_remote::codegen::gpu {

using ir::DType;
namespace ll = mlir::LLVM;
namespace nv = mlir::NVVM;
using Int = ll::ICmpPredicate;

// -- Threads ----------------------------------------------------------------------------------------------------------

template <typename Register>
MlirValue GpuOps::special() {
  MlirValue word = b.create<Register>(b.getI32Type());
  return b.create<ll::ZExtOp>(b.getI64Type(), word);
}

MlirValue GpuOps::thread_x() { return special<nv::ThreadIdXOp>(); }
MlirValue GpuOps::thread_y() { return special<nv::ThreadIdYOp>(); }
MlirValue GpuOps::threads_x() { return special<nv::BlockDimXOp>(); }
MlirValue GpuOps::threads_y() { return special<nv::BlockDimYOp>(); }
MlirValue GpuOps::block() { return special<nv::BlockIdXOp>(); }
MlirValue GpuOps::blocks() { return special<nv::GridDimXOp>(); }

void GpuOps::barrier() { b.create<nv::Barrier0Op>(); }
void GpuOps::warp_barrier() { b.create<nv::SyncWarpOp>(i32(-1)); }

// Shuffles move 32 bits, so wider values take two of them.
template <typename Shuffle>
MlirValue GpuOps::in_words(MlirValue x, Shuffle&& shuffle) {
  const mlir::Type type = x.getType(), i32_type = b.getI32Type(), i64_type = b.getI64Type();
  if (type.isF32()) return b.create<ll::BitcastOp>(type, shuffle(b.create<ll::BitcastOp>(i32_type, x)));
  if (type.isF64()) return b.create<ll::BitcastOp>(type, in_words(b.create<ll::BitcastOp>(i64_type, x), shuffle));
  if (type.isInteger(32)) return shuffle(x);
  if (!type.isInteger(64)) return b.create<ll::TruncOp>(type, shuffle(b.create<ll::ZExtOp>(i32_type, x)));
  MlirValue half = i64(32);
  MlirValue low = shuffle(b.create<ll::TruncOp>(i32_type, x));
  MlirValue high = shuffle(b.create<ll::TruncOp>(i32_type, b.create<ll::LShrOp>(x, half)));
  high = b.create<ll::ShlOp>(b.create<ll::ZExtOp>(i64_type, high), half);
  return bit_or(b.create<ll::ZExtOp>(i64_type, low), high);
}

MlirValue GpuOps::shuffle_xor(MlirValue x, uint32_t distance) {
  return in_words(x, [&](MlirValue word) -> MlirValue {
    return b.create<nv::ShflOp>(b.getI32Type(), i32(-1), word, i32(distance), i32(31), nv::ShflKind::bfly, nullptr);
  });
}

MlirValue GpuOps::shuffle_down(MlirValue x, uint32_t distance) {
  return in_words(x, [&](MlirValue word) -> MlirValue {
    return b.create<nv::ShflOp>(b.getI32Type(), i32(-1), word, i32(distance), i32(31), nv::ShflKind::down, nullptr);
  });
}

MlirValue GpuOps::broadcast_first(MlirValue x) {
  return in_words(x, [&](MlirValue word) -> MlirValue {
    return b.create<nv::ShflOp>(b.getI32Type(), i32(-1), word, i32(0), i32(31), nv::ShflKind::idx, nullptr);
  });
}

// -- Values -----------------------------------------------------------------------------------------------------------

MlirValue GpuOps::is_zero(MlirValue x) { return compare(Int::eq, x, integer(x.getType(), 0)); }
MlirValue GpuOps::divide(MlirValue x, MlirValue y) { return b.create<ll::UDivOp>(x, y); }
MlirValue GpuOps::divide_up(MlirValue x, MlirValue y) { return divide(add(x, sub(y, i64(1))), y); }

MlirValue GpuOps::to_memory(MlirValue x, DType memory) {
  if (memory != DType::kBFloat16) return Ops::to_memory(x, memory);
  return b.create<ll::BitcastOp>(b.getI16Type(), b.create<ll::FPTruncOp>(b.getBF16Type(), x));
}

// The same as in Ops, with words of 32 bits.
MlirValue GpuOps::random(MlirValue seed, MlirValue offset, MlirValue number) {
  const mlir::Type word = b.getI32Type(), wide = b.getI64Type();
  const auto lower = [&](MlirValue x) -> MlirValue { return b.create<ll::TruncOp>(word, x); };
  const auto upper = [&](MlirValue x) { return lower(b.create<ll::LShrOp>(x, i64(32))); };
  const auto product = [&](int64_t constant, MlirValue x) { return mul(i64(constant), b.create<ll::ZExtOp>(wide, x)); };
  MlirValue block = b.create<ll::LShrOp>(number, i64(2));
  MlirValue c0 = lower(block), c1 = upper(block), c2 = lower(offset), c3 = upper(offset);
  MlirValue k0 = lower(seed), k1 = upper(seed);
  for (int round = 0; round < 10; ++round) {
    MlirValue x = product(0xD2511F53, c0), y = product(0xCD9E8D57, c2);
    c0 = bit_xor(bit_xor(upper(y), c1), k0);
    c1 = lower(y);
    c2 = bit_xor(bit_xor(upper(x), c3), k1);
    c3 = lower(x);
    k0 = add(k0, i32(0x9E3779B9));
    k1 = add(k1, i32(0xBB67AE85));
  }
  MlirValue which = lower(number);
  MlirValue odd = compare(Int::ne, bit_and(which, i32(1)), i32(0));
  MlirValue last = compare(Int::ne, bit_and(which, i32(2)), i32(0));
  return select(last, select(odd, c3, c2), select(odd, c1, c0));
}

// -- Control flow -----------------------------------------------------------------------------------------------------

MlirValues GpuOps::loop(MlirValue begin, MlirValue end, MlirValue step, mlir::ValueRange carried, Body body) {
  mlir::Region* region = b.getInsertionBlock()->getParent();
  const auto new_block = [&](mlir::TypeRange types) {
    mlir::OpBuilder::InsertionGuard guard(b);
    return b.createBlock(region, region->end(), types, llvm::SmallVector<mlir::Location, 4>(types.size(), b.getLoc()));
  };
  llvm::SmallVector<mlir::Type, 4> types(carried.getTypes());
  mlir::Block* exit = new_block(types);
  types.insert(types.begin(), begin.getType());
  mlir::Block* inside = new_block(types);
  MlirValues first(carried);
  first.insert(first.begin(), begin);
  b.create<ll::CondBrOp>(less_than(begin, end), inside, first, exit, carried);

  b.setInsertionPointToStart(inside);
  MlirValue index = inside->getArgument(0);
  MlirValues next = body(index, inside->getArguments().drop_front());
  MlirValue following = add(index, step);
  MlirValues again = next;
  again.insert(again.begin(), following);
  b.create<ll::CondBrOp>(less_than(following, end), inside, again, exit, next);
  b.setInsertionPointToStart(exit);
  return MlirValues(exit->getArguments());
}

MlirValues GpuOps::if_then_else(MlirValue condition, mlir::ValueRange otherwise, llvm::function_ref<MlirValues()> yes) {
  MlirValues kept(otherwise);
  const llvm::SmallVector<mlir::Type, 4> types(otherwise.getTypes());
  return branch(condition, yes, [&] { return kept; }, types, false);
}

}  // namespace torch_remote::codegen::gpu
