#include "codegen/cpu/object.h"

#include <gtest/gtest.h>

#include <memory>

#include "codegen/cpu/emit.h"
#include "llvm/ADT/SmallString.h"
#include "llvm/IR/IRBuilder.h"
#include "llvm/IR/LegacyPassManager.h"
#include "llvm/IR/Module.h"
#include "llvm/MC/TargetRegistry.h"
#include "llvm/Support/TargetSelect.h"
#include "llvm/Target/TargetMachine.h"
#include "llvm/TargetParser/Host.h"

// Tests what the linker refuses. All other tests of this component show that its output runs.
namespace torch_remote::codegen::cpu {
namespace {

// An object file with a function `rows` that calls `outside`, or adds to a variable of that name.
class Object {
 public:
  explicit Object(bool variable) : module_("test", context_) {
    llvm::InitializeNativeTarget();
    llvm::InitializeNativeTargetAsmPrinter();
    llvm::Type* const nothing = llvm::Type::getVoidTy(context_);
    llvm::Type* const word = llvm::Type::getInt32Ty(context_);
    llvm::FunctionType* const type = llvm::FunctionType::get(nothing, false);
    auto* const rows = llvm::Function::Create(type, llvm::Function::ExternalLinkage, kRowsName, module_);
    rows->addFnAttr(llvm::Attribute::NoUnwind);
    llvm::IRBuilder<> builder(llvm::BasicBlock::Create(context_, "", rows));
    if (variable) {
      auto* const outside = new llvm::GlobalVariable(module_, word, false, llvm::GlobalVariable::InternalLinkage,
                                                     llvm::ConstantInt::get(word, 1), "outside");
      builder.CreateStore(builder.CreateAdd(builder.CreateLoad(word, outside), builder.getInt32(1)), outside);
    } else {
      builder.CreateCall(type, llvm::Function::Create(type, llvm::Function::ExternalLinkage, "outside", module_));
    }
    builder.CreateRetVoid();
    std::string error;
    const std::string triple = llvm::sys::getProcessTriple();
    const std::unique_ptr<llvm::TargetMachine> machine(
        llvm::TargetRegistry::lookupTarget(triple, error)->createTargetMachine(triple, "", "", {}, llvm::Reloc::PIC_));
    module_.setDataLayout(machine->createDataLayout());
    llvm::raw_svector_ostream stream(bytes_);
    llvm::legacy::PassManager passes;
    machine->addPassesToEmitFile(passes, stream, nullptr, llvm::CodeGenFileType::ObjectFile);
    passes.run(module_);
  }

  llvm::StringRef bytes() const { return bytes_; }

 private:
  llvm::LLVMContext context_;
  llvm::Module module_;
  llvm::SmallString<0> bytes_;
};

TEST(Object, WhatIsNotInItIsNamed) {
  Code code;
  const Status status = link_object({Object(false).bytes(), "test"}, &code);
  EXPECT_EQ(status.message(), "codegen: the code uses 'outside', which is not in it");
}

TEST(Object, DataThatIsWrittenIsRefused) {
  Code code;
  const Status status = link_object({Object(true).bytes(), "test"}, &code);
  EXPECT_EQ(status.message(), "codegen: the object has a section '.data' that is neither code nor constants");
}

TEST(Object, OtherBytesAreRefused) {
  Code code;
  EXPECT_FALSE(link_object({"", "test"}, &code).ok());
  EXPECT_FALSE(
      link_object({"this is no object file of any kind at all, though it is long enough to be one", "test"}, &code)
          .ok());
  const Object object(false);
  EXPECT_FALSE(link_object({object.bytes().take_front(object.bytes().size() / 2), "test"}, &code).ok());
}

}  // namespace
}  // namespace torch_remote::codegen::cpu
