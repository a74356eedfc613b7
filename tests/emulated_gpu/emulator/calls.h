#pragma once

#include <set>
#include <string>
#include <vector>

#include "tests/emulated_gpu/emulator/builder.h"
#include "tests/emulated_gpu/emulator/sites.h"

namespace torch_remote::codegen::emulator {

// Replaces NVVM intrinsics and inline PTX by calls of the runtime and by LLVM's target-independent operations.
class IntrinsicLowering {
 public:
  IntrinsicLowering(llvm::Module& module, Sites& sites, bool checked) : b_(module), sites_(sites), checked_(checked) {}

  void rewrite(llvm::Function& function);
  // Names of intrinsics that are not supported.
  const std::set<std::string>& unknown() const { return unknown_; }

 private:
  using Parts = llvm::ArrayRef<llvm::StringRef>;  // parts of a name, split at its dots

  // Each returns the value that replaces the call (any value if the call has no result), or null for an unknown name.
  llvm::Value* replace(llvm::CallInst& call, llvm::StringRef name);
  llvm::Value* special_register(llvm::StringRef name);
  llvm::Value* barrier(llvm::CallInst& call, llvm::StringRef name);
  llvm::Value* fence(llvm::CallInst& call, llvm::StringRef name);
  llvm::Value* fence(bool device_wide);
  llvm::Value* warp(llvm::CallInst& call, Parts parts);
  llvm::Value* call_warp_operation(llvm::CallInst& call, WarpOp op, llvm::Value* mask, llvm::Value* value,
                                   llvm::Value* lane, llvm::Value* clamp);
  llvm::Value* atomic(llvm::CallInst& call, Parts parts);
  llvm::Value* memory(llvm::CallInst& call, llvm::StringRef name);
  llvm::Value* inline_assembly(llvm::CallInst& call);
  // -- defined in math.cpp
  llvm::Value* math(Parts parts, llvm::Type* result, llvm::ArrayRef<llvm::Value*> operands);
  llvm::Value* directed(Parts parts, llvm::ArrayRef<llvm::Value*> operands);
  llvm::Value* arithmetic(Parts parts, llvm::ArrayRef<llvm::Value*> operands);
  llvm::Value* convert(Parts parts, llvm::Type* result, llvm::ArrayRef<llvm::Value*> operands);
  llvm::Value* bits(Parts parts, llvm::Type* result, llvm::ArrayRef<llvm::Value*> operands);

  Builder b_;
  Sites& sites_;
  bool checked_;
  std::set<std::string> unknown_;
};

}  // namespace torch_remote::codegen::emulator
