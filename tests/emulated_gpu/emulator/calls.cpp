#include "tests/emulated_gpu/emulator/calls.h"

#include <algorithm>
#include <cstddef>
#include <optional>

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/StringSwitch.h"
#include "llvm/IR/InlineAsm.h"
#include "llvm/IR/InstIterator.h"
#include "llvm/IR/Intrinsics.h"

namespace torch_remote::codegen::emulator {
namespace {

using llvm::StringRef;
using llvm::Value;

const llvm::StringMap<WarpOp>& warp_ops() {
  static const llvm::StringMap<WarpOp> ops = {
      {"shfl.sync.up", WarpOp::kShuffleUp},
      {"shfl.sync.down", WarpOp::kShuffleDown},
      {"shfl.sync.bfly", WarpOp::kShuffleButterfly},
      {"shfl.sync.idx", WarpOp::kShuffleIndex},
      {"vote.all.sync", WarpOp::kAll},
      {"vote.any.sync", WarpOp::kAny},
      {"vote.uni.sync", WarpOp::kUniform},
      {"vote.ballot.sync", WarpOp::kBallot},
      {"match.any.sync", WarpOp::kMatchAny},
      {"match.all.sync", WarpOp::kMatchAll},
      {"redux.sync.add", WarpOp::kAdd},
      {"redux.sync.min", WarpOp::kMin},
      {"redux.sync.max", WarpOp::kMax},
      {"redux.sync.umin", WarpOp::kUnsignedMin},
      {"redux.sync.umax", WarpOp::kUnsignedMax},
      {"redux.sync.and", WarpOp::kAnd},
      {"redux.sync.or", WarpOp::kOr},
      {"redux.sync.xor", WarpOp::kXor},
  };
  return ops;
}

bool is_zero(const Value* value) {
  const auto* constant = llvm::dyn_cast<llvm::ConstantInt>(value);
  return constant != nullptr && constant->isZero();
}

}  // namespace

void IntrinsicLowering::rewrite(llvm::Function& function) {
  for (llvm::Instruction& instruction : llvm::make_early_inc_range(llvm::instructions(function))) {
    if (auto* fence = llvm::dyn_cast<llvm::FenceInst>(&instruction); fence != nullptr && checked_) {
      llvm::SmallVector<StringRef> scopes;
      fence->getContext().getSyncScopeNames(scopes);
      b_.SetInsertPoint(fence->getNextNode());
      b_.runtime(kFenceFunction, b_.getVoidTy(), {b_.getInt32(scopes[fence->getSyncScopeID()] != "block")},
                 Effect::kYields);
    }
    auto* call = llvm::dyn_cast<llvm::CallInst>(&instruction);
    if (call == nullptr) continue;
    call->setCallingConv(llvm::CallingConv::C);
    b_.SetInsertPoint(call);
    const llvm::Function* callee = call->getCalledFunction();
    Value* value = nullptr;
    if (call->isInlineAsm()) {
      value = inline_assembly(*call);
      const auto* assembly = llvm::cast<llvm::InlineAsm>(call->getCalledOperand());
      if (value == nullptr) unknown_.insert("inline PTX '" + std::string(assembly->getAsmString()) + "'");
    } else if (callee == nullptr) {
      unknown_.insert("a call through a pointer");
    } else {
      const StringRef name = callee->getName();
      value = replace(*call, name);
      if (value == nullptr && name.starts_with("llvm.nvvm.")) unknown_.insert(name.str());
    }
    if (value == nullptr) continue;
    if (!call->getType()->isVoidTy()) call->replaceAllUsesWith(value);
    call->eraseFromParent();
  }
}

Value* IntrinsicLowering::replace(llvm::CallInst& call, StringRef name) {
  if (name == "__nvvm_reflect") return b_.getInt32(0);  // the answer for "__CUDA_FTZ"
  if (name == "llvm.trap") {
    return b_.runtime(kTrapFunction, b_.getVoidTy(), {b_.getInt32(sites_.of(call))}, Effect::kNoReturn);
  }
  if (!name.consume_front("llvm.nvvm.")) return nullptr;
  if (name.consume_front("read.ptx.sreg.")) return special_register(name);
  llvm::SmallVector<StringRef> parts(llvm::split(name, "."));
  if (name == "exit") return b_.runtime(kExitFunction, b_.getVoidTy(), {}, Effect::kYields);
  if (name == "nanosleep") return b_.runtime(kYieldFunction, b_.getVoidTy(), {}, Effect::kYields);
  if (name.starts_with("bar")) return barrier(call, name);
  if (name.starts_with("membar.") || name.starts_with("fence.")) return fence(call, name);
  if (llvm::is_contained({"shfl", "vote", "match", "redux"}, parts[0])) return warp(call, parts);
  if (parts[0] == "activemask") return b_.CreateShl(b_.getInt32(1), b_.lane());
  if (parts[0] == "atomic") return atomic(call, parts);
  if (llvm::is_contained({"ldg", "ldu", "ptr"}, parts[0])) return memory(call, name);
  return math(parts, call.getType(), llvm::SmallVector<Value*>(call.args()));
}

Value* IntrinsicLowering::special_register(StringRef name) {
  llvm::Type* i32 = b_.getInt32Ty();
  static const llvm::StringMap<uint64_t> fields = {
      {"tid", offsetof(Registers, tid)},
      {"ntid", offsetof(Registers, ntid)},
      {"ctaid", offsetof(Registers, ctaid)},
      {"nctaid", offsetof(Registers, nctaid)},
  };
  const auto [base, dim] = name.split('.');
  if (const auto found = fields.find(base); found != fields.end()) {
    const size_t place = StringRef("xyz").find(dim);
    if (dim.size() == 1 && place != StringRef::npos) return b_.field(found->second + 4 * place, i32);
    return nullptr;
  }
  if (name == "warpsize") return b_.getInt32(kWarp);
  if (name == "laneid") return b_.lane();
  if (name == "warpid") return b_.field(offsetof(Registers, warp), i32);
  if (name == "smid") return b_.getInt32(0);
  if (name == "lanemask.eq") return b_.CreateShl(b_.getInt32(1), b_.lane());
  if (name == "lanemask.lt") return b_.CreateNot(b_.CreateShl(b_.getInt32(-1), b_.lane()));
  if (name == "lanemask.le") return b_.CreateNot(b_.CreateShl(b_.getInt32(-2), b_.lane()));
  if (name == "lanemask.ge") return b_.CreateShl(b_.getInt32(-1), b_.lane());
  if (name == "lanemask.gt") return b_.CreateShl(b_.getInt32(-2), b_.lane());
  if (name == "clock64" || name == "clock" || name == "globaltimer") {
    Value* cycles = b_.CreateIntrinsic(llvm::Intrinsic::readcyclecounter, {}, {});
    return name == "clock" ? b_.CreateTrunc(cycles, i32) : cycles;
  }
  return nullptr;
}

Value* IntrinsicLowering::barrier(llvm::CallInst& call, StringRef name) {
  if (name == "bar.warp.sync") {
    Value* zero = b_.getInt32(0);
    return call_warp_operation(call, WarpOp::kSync, call.getArgOperand(0), zero, zero, zero);
  }
  std::optional<BarrierOp> op;
  Value* predicate = b_.getInt32(0);
  if (name == "barrier0") op = BarrierOp::kSync;
  if (llvm::is_contained({"bar.sync", "barrier.sync", "barrier.n"}, name) && is_zero(call.getArgOperand(0))) {
    op = BarrierOp::kSync;
  }
  const StringRef counts = name == "barrier0.popc"  ? "c"
                           : name == "barrier0.and" ? "a"
                           : name == "barrier0.or"  ? "o"
                                                    : "";
  if (!counts.empty()) {
    op = counts == "c" ? BarrierOp::kCount : counts == "a" ? BarrierOp::kAnd : BarrierOp::kOr;
    predicate = b_.CreateZExt(b_.CreateICmpNE(call.getArgOperand(0), predicate), b_.getInt32Ty());
  }
  if (!op) return nullptr;  // barriers other than 0, and barriers of some threads only
  return b_.runtime(kBarrierFunction, b_.getInt32Ty(),
                    {b_.getInt32(sites_.of(call)), b_.getInt32(static_cast<uint32_t>(*op)), predicate},
                    Effect::kYields);
}

Value* IntrinsicLowering::fence(bool device_wide) {
  Value* result = b_.CreateFence(llvm::AtomicOrdering::SequentiallyConsistent);
  if (!checked_) return result;
  return b_.runtime(kFenceFunction, b_.getVoidTy(), {b_.getInt32(device_wide)}, Effect::kYields);
}

Value* IntrinsicLowering::fence(llvm::CallInst& call, StringRef name) {
  (void)call;
  if (name == "membar.cta") return fence(false);
  if (name == "membar.gl" || name == "membar.sys") return fence(true);
  return nullptr;
}

Value* IntrinsicLowering::warp(llvm::CallInst& call, Parts parts) {
  if (parts.size() < 3) return nullptr;
  const auto found = warp_ops().find(llvm::join(parts.take_front(3), "."));
  if (found == warp_ops().end()) return nullptr;
  const auto x = [&](unsigned i) { return call.getArgOperand(i); };
  Value* zero = b_.getInt32(0);
  if (parts[0] == "shfl") return call_warp_operation(call, found->second, x(0), x(1), x(2), x(3));
  if (parts[0] == "redux") return call_warp_operation(call, found->second, x(1), x(0), zero, zero);
  return call_warp_operation(call, found->second, x(0), x(1), zero, zero);
}

Value* IntrinsicLowering::call_warp_operation(llvm::CallInst& call, WarpOp op, Value* mask, Value* value, Value* lane,
                                              Value* clamp) {
  llvm::Type *i32 = b_.getInt32Ty(), *i64 = b_.getInt64Ty();
  if (value->getType()->isFloatTy()) value = b_.CreateBitCast(value, i32);
  Value* both = b_.runtime(kWarpFunction, i64,
                           {b_.getInt32(sites_.of(call)), b_.getInt32(static_cast<uint32_t>(op)), mask,
                            b_.CreateZExt(value, i64), lane, clamp},
                           Effect::kYields);
  llvm::Type* type = call.getType();
  if (type->isVoidTy()) return both;
  auto* pair = llvm::dyn_cast<llvm::StructType>(type);  // a value and a predicate
  llvm::Type* wanted = pair != nullptr ? pair->getElementType(0) : type;
  Value* low = wanted->isFloatTy() ? b_.CreateBitCast(b_.CreateTrunc(both, i32), wanted) : b_.CreateTrunc(both, wanted);
  if (pair == nullptr) return low;
  Value* predicate = b_.CreateTrunc(b_.CreateLShr(both, 32), pair->getElementType(1));
  return b_.CreateInsertValue(b_.CreateInsertValue(llvm::PoisonValue::get(pair), low, 0), predicate, 1);
}

// atomic.load.{add,inc,dec}.*, atomic.OP.gen.{i,f}.SCOPE.
Value* IntrinsicLowering::atomic(llvm::CallInst& call, Parts parts) {
  if (parts.size() < 3) return nullptr;
  using Op = llvm::AtomicRMWInst::BinOp;
  const StringRef name = parts[1] == "load" ? parts[2] : parts[1];
  const bool is_float = call.getType()->isFloatingPointTy();
  Value *address = call.getArgOperand(0), *value = call.getArgOperand(1);
  const auto ordering = llvm::AtomicOrdering::Monotonic;
  llvm::Instruction* result = nullptr;
  if (name == "cas") {
    auto* exchange = b_.CreateAtomicCmpXchg(address, value, call.getArgOperand(2), {}, ordering, ordering);
    sites_.accesses().emplace_back(exchange, sites_.of(call));
    return b_.CreateExtractValue(exchange, 0);
  }
  const std::optional<Op> op = llvm::StringSwitch<std::optional<Op>>(name)
                                   .Case("add", is_float ? Op::FAdd : Op::Add)
                                   .Case("exch", Op::Xchg)
                                   .Case("max", Op::Max)
                                   .Case("min", Op::Min)
                                   .Case("inc", Op::UIncWrap)
                                   .Case("dec", Op::UDecWrap)
                                   .Case("and", Op::And)
                                   .Case("or", Op::Or)
                                   .Case("xor", Op::Xor)
                                   .Default(std::nullopt);
  if (!op) return nullptr;
  result = b_.CreateAtomicRMW(*op, address, value, {}, ordering);
  sites_.accesses().emplace_back(result, sites_.of(call));
  return result;
}

Value* IntrinsicLowering::memory(llvm::CallInst& call, StringRef name) {
  if (name.starts_with("ptr.")) return b_.CreateAddrSpaceCast(call.getArgOperand(0), call.getType());
  const auto* alignment = llvm::cast<llvm::ConstantInt>(call.getArgOperand(1));
  auto* load = b_.CreateAlignedLoad(call.getType(), call.getArgOperand(0), llvm::Align(alignment->getZExtValue()));
  sites_.accesses().emplace_back(load, sites_.of(call));
  return load;
}

// Inline PTX in hand-written kernels, for operations without an intrinsic. "op.type $0, $1, $2;" maps to the intrinsic
// of that name.
Value* IntrinsicLowering::inline_assembly(llvm::CallInst& call) {
  StringRef text = llvm::cast<llvm::InlineAsm>(call.getCalledOperand())->getAsmString();
  text = text.trim().rtrim(';').trim();
  if (text.empty()) return b_.getInt32(0);  // a compiler barrier for memory accesses
  if (text == "activemask.b32 $0") return b_.CreateShl(b_.getInt32(1), b_.lane());
  if (text == "exit") return b_.runtime(kExitFunction, b_.getVoidTy(), {}, Effect::kYields);
  if (text == "trap") {
    return b_.runtime(kTrapFunction, b_.getVoidTy(), {b_.getInt32(sites_.of(call))}, Effect::kNoReturn);
  }
  if (llvm::is_contained({"fence.acq_rel.gpu", "fence.sc.gpu", "fence.acq_rel.sys", "fence.sc.sys"}, text)) {
    return fence(true);
  }
  if (text == "fence.acq_rel.cta" || text == "fence.sc.cta") return fence(false);
  if (StringRef name = text; name.consume_front("mov.u32 $0, %")) {
    std::string dotted = name.str();
    std::replace(dotted.begin(), dotted.end(), '_', '.');
    return special_register(dotted);
  }
  const auto [op, operands] = text.split(' ');
  const StringRef expected[] = {"$0", "$0, $1", "$0, $1, $2", "$0, $1, $2, $3"};
  if (call.arg_size() >= 4 || operands.trim() != expected[call.arg_size()] || call.getType()->isVoidTy())
    return nullptr;
  return math(llvm::SmallVector<StringRef>(llvm::split(op, ".")), call.getType(),
              llvm::SmallVector<Value*>(call.args()));
}

}  // namespace torch_remote::codegen::emulator
