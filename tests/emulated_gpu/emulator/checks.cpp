#include "tests/emulated_gpu/emulator/checks.h"

#include "llvm/Analysis/ValueTracking.h"
#include "llvm/IR/Instructions.h"
#include "llvm/IR/IntrinsicInst.h"
#include "tests/emulated_gpu/emulator/builder.h"

namespace torch_remote::codegen::emulator {
namespace {

class Checks {
 public:
  Checks(llvm::Module& module, const StructArguments& structs) : module_(module), b_(module), structs_(structs) {}

  void add(llvm::Instruction& instruction, uint32_t site) {
    site_ = site;
    b_.SetInsertPoint(&instruction);
    if (auto* load = llvm::dyn_cast<llvm::LoadInst>(&instruction)) {
      const bool atomic = load->isAtomic() || load->isVolatile();
      access(load->getPointerOperand(), size(load->getType()), atomic ? AccessKind::kAtomicLoad : AccessKind::kLoad,
             load->getAlign());
    } else if (auto* store = llvm::dyn_cast<llvm::StoreInst>(&instruction)) {
      const bool atomic = store->isAtomic() || store->isVolatile();
      access(store->getPointerOperand(), size(store->getValueOperand()->getType()),
             atomic ? AccessKind::kAtomicStore : AccessKind::kStore, store->getAlign());
    } else if (auto* change = llvm::dyn_cast<llvm::AtomicRMWInst>(&instruction)) {
      access(change->getPointerOperand(), size(change->getType()), AccessKind::kAtomic, change->getAlign());
    } else if (auto* exchange = llvm::dyn_cast<llvm::AtomicCmpXchgInst>(&instruction)) {
      access(exchange->getPointerOperand(), size(exchange->getNewValOperand()->getType()), AccessKind::kAtomic,
             exchange->getAlign());
    } else if (auto* memory = llvm::dyn_cast<llvm::MemIntrinsic>(&instruction)) {
      if (auto* copy = llvm::dyn_cast<llvm::MemTransferInst>(memory)) {
        access(copy->getRawSource(), copy->getLength(), AccessKind::kLoad, copy->getSourceAlign().valueOrOne());
      }
      access(memory->getRawDest(), memory->getLength(), AccessKind::kStore, memory->getDestAlign().valueOrOne());
    }
  }

  void loop_iteration(llvm::Instruction& instruction, uint32_t site) {
    b_.SetInsertPoint(&instruction);
    b_.runtime(kLoopIterationFunction, b_.getVoidTy(), {b_.getInt32(site)}, Effect::kYields);
  }

 private:
  llvm::Value* size(llvm::Type* type) { return b_.getInt64(module_.getDataLayout().getTypeStoreSize(type)); }

  void access(llvm::Value* address, llvm::Value* bytes, AccessKind kind, llvm::Align alignment) {
    address = b_.CreateAddrSpaceCast(address, b_.getPtrTy());
    bytes = b_.CreateZExtOrTrunc(bytes, b_.getInt64Ty());
    llvm::Value* base = llvm::getUnderlyingObject(address, 0);
    if (const auto found = structs_.find(base); found != structs_.end()) {
      return local(address, bytes, base, found->second);
    }
    if (auto* variable = llvm::dyn_cast<llvm::AllocaInst>(base)) {
      const auto known = variable->getAllocationSize(module_.getDataLayout());
      if (known && !known->isScalable()) local(address, bytes, base, known->getFixedValue());
      return;
    }
    b_.runtime(
        kAccessFunction, b_.getVoidTy(),
        {address, bytes, b_.getInt32(static_cast<uint32_t>(kind)), b_.getInt64(alignment.value()), b_.getInt32(site_)},
        Effect::kChecks);
  }

  void local(llvm::Value* address, llvm::Value* bytes, llvm::Value* base, uint64_t whole) {
    base = b_.CreateAddrSpaceCast(base, b_.getPtrTy());
    b_.runtime(kLocalFunction, b_.getVoidTy(), {address, bytes, base, b_.getInt64(whole), b_.getInt32(site_)},
               Effect::kChecks);
  }

  llvm::Module& module_;
  Builder b_;
  const StructArguments& structs_;
  uint32_t site_ = 0;
};

}  // namespace

void add_checks(llvm::Module& module, Sites& sites, const StructArguments& structs) {
  Checks checks(module, structs);
  for (const auto& [instruction, site] : sites.accesses()) checks.add(*instruction, site);
  for (const auto& [instruction, site] : sites.loop_branches()) checks.loop_iteration(*instruction, site);
}

}  // namespace torch_remote::codegen::emulator
