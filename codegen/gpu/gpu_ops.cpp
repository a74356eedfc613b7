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
void GpuOps::warp_barrier() { b.create<nv::SyncWarpOp>(b.i32(-1)); }

// Shuffles move 32 bits, so wider values take two of them.
template <typename Shuffle>
MlirValue GpuOps::in_words(MlirValue x, Shuffle&& shuffle) {
  const mlir::Type type = x.getType(), i32_type = b.getI32Type(), i64_type = b.getI64Type();
  if (type.isF32()) return b.create<ll::BitcastOp>(type, shuffle(b.create<ll::BitcastOp>(i32_type, x)));
  if (type.isF64()) return b.create<ll::BitcastOp>(type, in_words(b.create<ll::BitcastOp>(i64_type, x), shuffle));
  if (type.isInteger(32)) return shuffle(x);
  if (!type.isInteger(64)) return b.create<ll::TruncOp>(type, shuffle(b.create<ll::ZExtOp>(i32_type, x)));
  MlirValue half = b.i64(32);
  MlirValue low = shuffle(b.create<ll::TruncOp>(i32_type, x));
  MlirValue high = shuffle(b.create<ll::TruncOp>(i32_type, b.create<ll::LShrOp>(x, half)));
  high = b.create<ll::ShlOp>(b.create<ll::ZExtOp>(i64_type, high), half);
  return b.bit_or(b.create<ll::ZExtOp>(i64_type, low), high);
}

MlirValue GpuOps::shuffle_xor(MlirValue x, uint32_t distance) {
  return in_words(x, [&](MlirValue word) -> MlirValue {
    return b.create<nv::ShflOp>(b.getI32Type(), b.i32(-1), word, b.i32(distance), b.i32(31), nv::ShflKind::bfly,
                                nullptr);
  });
}

MlirValue GpuOps::shuffle_down(MlirValue x, uint32_t distance) {
  return in_words(x, [&](MlirValue word) -> MlirValue {
    return b.create<nv::ShflOp>(b.getI32Type(), b.i32(-1), word, b.i32(distance), b.i32(31), nv::ShflKind::down,
                                nullptr);
  });
}

MlirValue GpuOps::broadcast_first(MlirValue x) {
  return in_words(x, [&](MlirValue word) -> MlirValue {
    return b.create<nv::ShflOp>(b.getI32Type(), b.i32(-1), word, b.i32(0), b.i32(31), nv::ShflKind::idx, nullptr);
  });
}

// -- Values -----------------------------------------------------------------------------------------------------------

MlirValue GpuOps::to_memory(MlirValue x, DType memory) {
  if (memory != DType::kBFloat16) return Ops::to_memory(x, memory);
  return b.create<ll::BitcastOp>(b.getI16Type(), b.create<ll::FPTruncOp>(b.getBF16Type(), x));
}

// The same as in Ops, with words of 32 bits.
MlirValue GpuOps::random(MlirValue seed, MlirValue offset, MlirValue number) {
  const mlir::Type word = b.getI32Type(), wide = b.getI64Type();
  const auto lower = [&](MlirValue x) -> MlirValue { return b.create<ll::TruncOp>(word, x); };
  const auto upper = [&](MlirValue x) { return lower(b.create<ll::LShrOp>(x, b.i64(32))); };
  const auto product = [&](int64_t constant, MlirValue x) {
    return b.mul(b.i64(constant), b.create<ll::ZExtOp>(wide, x));
  };
  MlirValue block = b.create<ll::LShrOp>(number, b.i64(2));
  MlirValue c0 = lower(block), c1 = upper(block), c2 = lower(offset), c3 = upper(offset);
  MlirValue k0 = lower(seed), k1 = upper(seed);
  for (int round = 0; round < 10; ++round) {
    MlirValue x = product(0xD2511F53, c0), y = product(0xCD9E8D57, c2);
    c0 = b.bit_xor(b.bit_xor(upper(y), c1), k0);
    c1 = lower(y);
    c2 = b.bit_xor(b.bit_xor(upper(x), c3), k1);
    c3 = lower(x);
    k0 = b.add(k0, b.i32(0x9E3779B9));
    k1 = b.add(k1, b.i32(0xBB67AE85));
  }
  MlirValue which = lower(number);
  MlirValue odd = b.compare(Int::ne, b.bit_and(which, b.i32(1)), b.i32(0));
  MlirValue last = b.compare(Int::ne, b.bit_and(which, b.i32(2)), b.i32(0));
  return b.select(last, b.select(odd, c3, c2), b.select(odd, c1, c0));
}

}  // namespace torch_remote::codegen::gpu
