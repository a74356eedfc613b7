#pragma once

#include <cstdint>

#include "llvm/IR/IRBuilder.h"
#include "llvm/IR/Module.h"
#include "tests/emulated_gpu/emulator/runtime.h"
#include "tests/emulated_gpu/emulator/worker.h"

namespace torch_remote::codegen::emulator {

// States what the optimizer may assume about a runtime function.
enum class Effect {
  kNone,      // no side effects; the result is constant over a thread's life
  kChecks,    // no side effects if it returns
  kYields,    // lets other threads run; must not be moved
  kNoReturn,  // does not return
};

// Emits calls of the runtime.
class Builder : public llvm::IRBuilder<> {
 public:
  explicit Builder(llvm::Module& module) : IRBuilder(module.getContext()), module_(module) {}

  llvm::CallInst* runtime(const char* name, llvm::Type* result, llvm::ArrayRef<llvm::Value*> arguments, Effect effect) {
    llvm::SmallVector<llvm::Type*> types;
    for (llvm::Value* argument : arguments) types.push_back(argument->getType());
    auto* function = llvm::cast<llvm::Function>(
        module_.getOrInsertFunction(name, llvm::FunctionType::get(result, types, false)).getCallee());
    function->addFnAttr(llvm::Attribute::NoUnwind);
    if (effect == Effect::kNone) {
      function->setDoesNotAccessMemory();
      function->addFnAttr(llvm::Attribute::WillReturn);
      function->addFnAttr(llvm::Attribute::Speculatable);
    }
    if (effect == Effect::kChecks) function->setOnlyAccessesInaccessibleMemory();
    if (effect == Effect::kYields) function->addFnAttr(llvm::Attribute::Convergent);
    if (effect == Effect::kNoReturn) function->setDoesNotReturn();
    return CreateCall(function, arguments);
  }

  // Loads a field of the thread's registers, at an offset in `Registers`.
  llvm::Value* field(uint64_t offset, llvm::Type* type) {
    llvm::Value* registers = runtime(kRegistersFunction, getPtrTy(), {}, Effect::kNone);
    auto* load = CreateLoad(type, CreateConstInBoundsGEP1_64(getInt8Ty(), registers, offset));
    load->setMetadata(llvm::LLVMContext::MD_invariant_load, llvm::MDNode::get(getContext(), {}));
    return load;
  }
  llvm::Value* lane() { return field(offsetof(Registers, lane), getInt32Ty()); }

 private:
  llvm::Module& module_;
};

}  // namespace torch_remote::codegen::emulator
