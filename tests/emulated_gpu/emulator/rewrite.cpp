#include "tests/emulated_gpu/emulator/rewrite.h"

#include <map>

#include "llvm/ADT/StringSet.h"
#include "llvm/IR/Constants.h"
#include "llvm/IR/DebugInfo.h"
#include "llvm/IR/InstIterator.h"
#include "llvm/IR/TypeFinder.h"
#include "llvm/Support/MathExtras.h"
#include "llvm/Target/TargetMachine.h"
#include "tests/emulated_gpu/emulator/builder.h"
#include "tests/emulated_gpu/emulator/calls.h"
#include "tests/emulated_gpu/emulator/checks.h"
#include "tests/emulated_gpu/emulator/sites.h"
#include "tests/emulated_gpu/emulator/tags.h"
#include "tests/emulated_gpu/emulator/variable_addresses.h"

namespace torch_remote::codegen::emulator {
namespace {

// Kernels, and the maximum number of threads per block.
using Kernels = std::map<llvm::Function*, uint64_t>;

constexpr uint64_t kMostThreads = 1024;

void read_annotations(llvm::Module& module, Kernels& kernels) {
  llvm::NamedMDNode* annotations = module.getNamedMetadata("nvvm.annotations");
  if (annotations == nullptr) return;
  std::map<llvm::Function*, uint64_t> limits;
  for (const llvm::MDNode* node : annotations->operands()) {
    auto* function = llvm::mdconst::dyn_extract_or_null<llvm::Function>(node->getOperand(0));
    if (function == nullptr) continue;
    for (unsigned i = 1; i + 1 < node->getNumOperands(); i += 2) {
      const auto* key = llvm::dyn_cast<llvm::MDString>(node->getOperand(i));
      const auto* value = llvm::mdconst::dyn_extract<llvm::ConstantInt>(node->getOperand(i + 1));
      if (key == nullptr || value == nullptr) continue;
      if (key->getString() == "kernel") kernels.try_emplace(function, kMostThreads);
      if (key->getString().starts_with("maxntid")) {
        limits[function] = std::max<uint64_t>(limits[function], 1) * value->getZExtValue();
      }
    }
  }
  for (const auto& [function, limit] : limits) {
    if (const auto found = kernels.find(function); found != kernels.end()) found->second = limit;
  }
  module.eraseNamedMetadata(annotations);
}

// Reads the attribute, e.g. "nvvm.maxntid"="256,1,1".
void read_attributes(llvm::Function& function, Kernels& kernels) {
  if (function.getCallingConv() == llvm::CallingConv::PTX_Kernel) kernels.try_emplace(&function, kMostThreads);
  const auto found = kernels.find(&function);
  if (found == kernels.end() || !function.hasFnAttribute("nvvm.maxntid")) return;
  uint64_t limit = 1, number = 0;
  llvm::StringRef rest = function.getFnAttribute("nvvm.maxntid").getValueAsString();
  while (!rest.consumeInteger(10, number)) {
    limit *= number;
    rest.consume_front(",");
  }
  found->second = limit;
}

Status unsupported(const std::string& what) { return {ErrorCode::kUnsupported, "emulator: " + what}; }

class Rewriter {
 public:
  Rewriter(llvm::Module& module, const llvm::TargetMachine& cpu, bool checked, uint64_t tag, Rewritten* result)
      : module_(module),
        cpu_(cpu),
        checked_(checked),
        tag_(tag),
        result_(result),
        sites_(module, checked),
        b_(module) {}

  Status run() {
    read_annotations(module_, kernels_);
    IntrinsicLowering calls(module_, sites_, checked_);
    for (llvm::Function& function : module_) {
      read_attributes(function, kernels_);
      function.setCallingConv(llvm::CallingConv::C);
      if (!function.isDeclaration()) calls.rewrite(function);
    }
    if (Status status = check_known(calls); !status) return status;
    VariableAddresses addresses(module_, checked_);
    for (const auto& [function, threads] : kernels_) describe(*function, threads, addresses);
    if (Status status = addresses.replace(&result_->globals); !status) return status;
    if (Status status = change_target(); !status) return status;
    for (const auto& [function, threads] : kernels_) take_structs(*function);
    if (tag_ != 0) strip_tags(module_, tag_);
    if (checked_) add_checks(module_, sites_, structs_);
    for (const auto& [function, threads] : kernels_) add_wrapper(*function);
    result_->sites = sites_.take();
    llvm::StripDebugInfo(module_);  // the descriptions of sites already have the lines
    return {};
  }

 private:
  Status check_known(const IntrinsicLowering& calls) {
    std::set<std::string> unknown = calls.unknown();
    llvm::StringSet<> known;
    for (const RuntimeSymbol& symbol : runtime_symbols()) known.insert(symbol.name);
    for (const llvm::Function& function : module_) {
      const llvm::StringRef name = function.getName();
      if (!function.isDeclaration() || function.isIntrinsic() || function.use_empty() || known.contains(name)) continue;
      if (name != "__nvvm_reflect") unknown.insert("function '" + name.str() + "', which is not in the module");
    }
    if (unknown.empty()) return {};
    std::string text;
    for (const std::string& one : unknown) text += (text.empty() ? "" : ", ") + one;
    return unsupported("module '" + module_.getName().str() + "' uses what is not known: " + text);
  }

  // Whether the function calls one of these, directly or through others.
  bool calls_any(const llvm::Function& function, const llvm::StringSet<>& names, llvm::StringSet<>& seen) {
    if (names.contains(function.getName())) return true;
    if (!seen.insert(function.getName()).second) return false;
    for (const llvm::Instruction& instruction : llvm::instructions(function)) {
      const auto* call = llvm::dyn_cast<llvm::CallInst>(&instruction);
      const llvm::Function* callee = call != nullptr ? call->getCalledFunction() : nullptr;
      if (callee != nullptr && calls_any(*callee, names, seen)) return true;
    }
    return false;
  }

  void describe(llvm::Function& function, uint64_t threads, VariableAddresses& addresses) {
    static const llvm::StringSet<> meets = {kBarrierFunction, kWarpFunction};
    static const llvm::StringSet<> leaves = {kExitFunction, kYieldFunction};
    KernelImage image;
    image.name = function.getName().str();
    image.attributes.max_threads = static_cast<uint32_t>(std::min(threads, kMostThreads));
    for (const llvm::Argument& argument : function.args()) {
      llvm::Type* const type = argument.hasByValAttr() ? argument.getParamByValType() : argument.getType();
      image.attributes.parameters.push_back(module_.getDataLayout().getTypeAllocSize(type));
    }
    llvm::StringSet<> seen;
    image.attributes.synchronizes = calls_any(function, meets, seen);
    seen.clear();
    // In checked mode, threads also switch at loop iterations, because one may spin on a value that another writes.
    image.fibers =
        image.attributes.synchronizes || !sites_.loop_branches().empty() || calls_any(function, leaves, seen);
    addresses.add_kernel(function, &image);
    result_->kernels.push_back(std::move(image));
  }

  // Types must have the same size on both targets; otherwise the layouts of host and kernel differ.
  Status change_target() {
    const llvm::DataLayout from = module_.getDataLayout(), to = cpu_.createDataLayout();
    if (from.getPointerSize(3) != to.getPointerSize(0)) return unsupported("pointers to shared memory have 32 bits");
    llvm::TypeFinder types;
    types.run(module_, /*onlyNamed=*/false);
    for (llvm::StructType* type : types) {
      if (!type->isSized()) continue;
      const auto *a = from.getStructLayout(type), *b = to.getStructLayout(type);
      if (a->getSizeInBytes() != b->getSizeInBytes() || a->getMemberOffsets() != b->getMemberOffsets()) {
        return unsupported("a struct has another layout on this CPU");
      }
    }
    module_.setDataLayout(to);
    module_.setTargetTriple(cpu_.getTargetTriple().str());
    for (llvm::Function& function : module_) {
      for (const char* name : {"target-cpu", "target-features", "denormal-fp-math-f32", "denormal-fp-math"}) {
        function.removeFnAttr(name);
      }
      if (!function.isDeclaration()) function.setLinkage(llvm::GlobalValue::InternalLinkage);
    }
    return {};
  }

  // Replaces a struct argument by a pointer to a copy, which the wrapper makes.
  void take_structs(llvm::Function& function) {
    for (llvm::Argument& argument : function.args()) {
      if (!argument.hasByValAttr()) continue;
      struct_types_[&argument] = argument.getParamByValType();
      structs_[&argument] = module_.getDataLayout().getTypeAllocSize(argument.getParamByValType());
      argument.removeAttr(llvm::Attribute::ByVal);
    }
  }

  // void run(void* const* arguments), with the arguments of cuLaunchKernel.
  void add_wrapper(llvm::Function& function) {
    auto* type = llvm::FunctionType::get(b_.getVoidTy(), {b_.getPtrTy()}, false);
    auto* wrapper =
        llvm::Function::Create(type, llvm::Function::ExternalLinkage, kRunPrefix + function.getName(), module_);
    b_.SetInsertPoint(llvm::BasicBlock::Create(b_.getContext(), "", wrapper));
    llvm::SmallVector<llvm::Value*> arguments;
    for (llvm::Argument& argument : function.args()) {
      llvm::Value* slot = b_.CreateConstGEP1_32(b_.getPtrTy(), wrapper->getArg(0), argument.getArgNo());
      llvm::Value* address = b_.CreateLoad(b_.getPtrTy(), slot);
      const auto found = struct_types_.find(&argument);
      if (found == struct_types_.end()) {
        arguments.push_back(b_.CreateAlignedLoad(argument.getType(), address, llvm::Align(1)));
        continue;
      }
      auto* copy = b_.CreateAlloca(found->second);
      copy->setAlignment(llvm::Align(16));
      b_.CreateMemCpy(copy, llvm::Align(16), address, llvm::Align(1), structs_.lookup(&argument));
      arguments.push_back(b_.CreateAddrSpaceCast(copy, argument.getType()));
    }
    b_.CreateCall(&function, arguments);
    b_.CreateRetVoid();
  }

  llvm::Module& module_;
  const llvm::TargetMachine& cpu_;
  const bool checked_;
  const uint64_t tag_;
  Rewritten* result_;
  Sites sites_;
  Builder b_;
  Kernels kernels_;
  StructArguments structs_;
  std::map<const llvm::Argument*, llvm::Type*> struct_types_;
};

}  // namespace

Status rewrite(llvm::Module& module, const llvm::TargetMachine& cpu, bool checked, uint64_t tag, Rewritten* result) {
  return Rewriter(module, cpu, checked, tag, result).run();
}

}  // namespace torch_remote::codegen::emulator
