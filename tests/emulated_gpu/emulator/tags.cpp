#include "tests/emulated_gpu/emulator/tags.h"

#include <vector>

#include "llvm/Analysis/ValueTracking.h"
#include "llvm/IR/IRBuilder.h"
#include "llvm/IR/InstIterator.h"
#include "llvm/IR/IntrinsicInst.h"
#include "llvm/IR/Module.h"

namespace torch_remote::codegen::emulator {
namespace {

// Indices of the operands that are addresses of accessed memory.
std::vector<unsigned> addresses(const llvm::Instruction& instruction) {
  if (llvm::isa<llvm::LoadInst>(instruction)) return {llvm::LoadInst::getPointerOperandIndex()};
  if (llvm::isa<llvm::StoreInst>(instruction)) return {llvm::StoreInst::getPointerOperandIndex()};
  if (llvm::isa<llvm::AtomicRMWInst>(instruction)) return {llvm::AtomicRMWInst::getPointerOperandIndex()};
  if (llvm::isa<llvm::AtomicCmpXchgInst>(instruction)) return {llvm::AtomicCmpXchgInst::getPointerOperandIndex()};
  if (llvm::isa<llvm::MemTransferInst>(instruction)) return {0, 1};
  if (llvm::isa<llvm::MemIntrinsic>(instruction)) return {0};
  return {};
}

}  // namespace

void strip_tags(llvm::Module& module, uint64_t tag) {
  llvm::IRBuilder<> builder(module.getContext());
  for (llvm::Function& function : module) {
    std::vector<llvm::Instruction*> accesses;
    for (llvm::Instruction& instruction : llvm::instructions(function)) {
      if (!addresses(instruction).empty()) accesses.push_back(&instruction);
    }
    for (llvm::Instruction* access : accesses) {
      for (const unsigned operand : addresses(*access)) {
        llvm::Value* const address = access->getOperand(operand);
        if (llvm::isa<llvm::AllocaInst>(llvm::getUnderlyingObject(address, 0))) continue;
        builder.SetInsertPoint(access);
        access->setOperand(operand,
                           builder.CreateIntrinsic(llvm::Intrinsic::ptrmask, {address->getType(), builder.getInt64Ty()},
                                                   {address, builder.getInt64(~tag)}));
      }
    }
  }
}

}  // namespace torch_remote::codegen::emulator
