#include "codegen/gpu/compile.h"

#include <map>
#include <string>
#include <utility>

#include "codegen/gpu/emit.h"
#include "codegen/gpu/recipe.h"
#include "llvm/ADT/SmallString.h"
#include "llvm/IR/LegacyPassManager.h"
#include "llvm/IR/Module.h"
#include "llvm/MC/TargetRegistry.h"
#include "llvm/Passes/PassBuilder.h"
#include "llvm/Support/TargetSelect.h"
#include "llvm/Support/raw_ostream.h"
#include "llvm/Target/TargetMachine.h"
#include "llvm/Transforms/InstCombine/InstCombine.h"
#include "llvm/Transforms/Scalar/ADCE.h"
#include "llvm/Transforms/Scalar/EarlyCSE.h"
#include "llvm/Transforms/Scalar/SimplifyCFG.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Dialect/LLVMIR/NVVMDialect.h"
#include "mlir/Target/LLVMIR/Dialect/Builtin/BuiltinToLLVMIRTranslation.h"
#include "mlir/Target/LLVMIR/Dialect/LLVMIR/LLVMToLLVMIRTranslation.h"
#include "mlir/Target/LLVMIR/Dialect/NVVM/NVVMToLLVMIRTranslation.h"
#include "mlir/Target/LLVMIR/Export.h"

namespace torch_remote::codegen::gpu {
namespace {

// We write PTX that all drivers since CUDA 12.0 accept. Code for a processor also runs on later ones, and this LLVM
// knows none after 90. On sm_75, LLVM computes conversions to and from bf16 with integers.
struct Target {
  uint32_t sm;
  const char* processor;
};
constexpr Target kTargets[] = {{75, "sm_75"}, {80, "sm_80"}, {90, "sm_90"}, {100, "sm_90"}};
constexpr const char* kPtxVersion = "+ptx80";
constexpr const char* kTriple = "nvptx64-nvidia-cuda";

std::unique_ptr<llvm::TargetMachine> make_machine(const Target& target) {
  static const bool initialized = [] {
    LLVMInitializeNVPTXTargetInfo();
    LLVMInitializeNVPTXTarget();
    LLVMInitializeNVPTXTargetMC();
    LLVMInitializeNVPTXAsmPrinter();
    return true;
  }();
  std::string error;
  const llvm::Target* found = initialized ? llvm::TargetRegistry::lookupTarget(kTriple, error) : nullptr;
  llvm::TargetOptions options;
  options.AllowFPOpFusion = llvm::FPOpFusion::Strict;
  return std::unique_ptr<llvm::TargetMachine>(found->createTargetMachine(
      kTriple, target.processor, kPtxVersion, options, std::nullopt, std::nullopt, llvm::CodeGenOptLevel::Aggressive));
}

// State that a compiling thread reuses for the next kernel.
class Compiler {
 public:
  Compiler() {
    mlir::DialectRegistry registry;
    registry.insert<mlir::LLVM::LLVMDialect, mlir::NVVM::NVVMDialect>();
    mlir::registerBuiltinDialectTranslation(registry);
    mlir::registerLLVMDialectTranslation(registry);
    mlir::registerNVVMDialectTranslation(registry);
    context_.appendDialectRegistry(registry);
    context_.loadAllAvailableDialects();
  }

  Status run(const Kernel& kernel, const GpuTarget& target, GpuCode* code) {
    llvm::LLVMContext llvm_context;
    std::unique_ptr<llvm::Module> ir;
    Recipe recipe;
    if (Status status = to_llvm(kernel, target, llvm_context, &ir, &recipe); !status.ok()) return status;
    *code = {};
    code->ptx = generate(*ir, *machine(target));
    code->functions = functions(recipe);
    code->recipe = std::move(recipe);
    return {};
  }

  Status to_llvm(const Kernel& kernel, const GpuTarget& target, llvm::LLVMContext& llvm_context,
                 std::unique_ptr<llvm::Module>* ir, Recipe* recipe) {
    llvm::TargetMachine* const made_for = machine(target);
    if (made_for == nullptr) {
      return {ErrorCode::kUnsupported,
              "gpu: no target sm_" + std::to_string(target.sm) + "; there are 75, 80, 90 and 100"};
    }
    Kernel expanded = kernel;
    expand_functions(expanded);
    const Plans plans(expanded);
    if (Status status = make_recipe(plans, recipe); !status.ok()) return status;
    const mlir::OwningOpRef<mlir::ModuleOp> module = emit(plans, *recipe, context_);
    *ir = mlir::translateModuleToLLVMIR(*module, llvm_context, "kernel", /*disableVerification=*/true);
    if (!*ir) return Status::internal("gpu: MLIR does not translate to LLVM IR");
    (*ir)->setDataLayout(made_for->createDataLayout());
    (*ir)->setTargetTriple(made_for->getTargetTriple().str());
    for (llvm::Function& function : **ir) {
      if (!function.isDeclaration()) function.addFnAttr(llvm::Attribute::NoUnwind);
    }
    optimize(**ir, *made_for);
    return {};
  }

 private:
  // Returns null if there is no such target.
  llvm::TargetMachine* machine(const GpuTarget& target) {
    for (const Target& candidate : kTargets) {
      if (candidate.sm != target.sm) continue;
      auto& made = machines_[target.sm];
      if (!made) made = make_machine(candidate);
      return made.get();
    }
    return nullptr;
  }

  // Runs the passes of LLVM's O3 that simplify and merge. Invariants stay in loops: moving them takes registers, of
  // which a thread has few, and only the assembler knows how many. The adjacent elements of a thread are already
  // unrolled.
  static void optimize(llvm::Module& module, llvm::TargetMachine& machine) {
    llvm::LoopAnalysisManager loops;
    llvm::FunctionAnalysisManager functions;
    llvm::CGSCCAnalysisManager components;
    llvm::ModuleAnalysisManager modules;
    llvm::PassBuilder builder(&machine);
    builder.registerModuleAnalyses(modules);
    builder.registerCGSCCAnalyses(components);
    builder.registerFunctionAnalyses(functions);
    builder.registerLoopAnalyses(loops);
    builder.crossRegisterProxies(loops, functions, components, modules);
    llvm::FunctionPassManager passes;
    passes.addPass(llvm::EarlyCSEPass());
    passes.addPass(llvm::InstCombinePass());
    passes.addPass(llvm::SimplifyCFGPass());
    passes.addPass(llvm::EarlyCSEPass());
    passes.addPass(llvm::InstCombinePass());
    passes.addPass(llvm::ADCEPass());
    for (llvm::Function& function : module) {
      if (!function.isDeclaration()) passes.run(function, functions);
    }
  }

  static std::string generate(llvm::Module& module, llvm::TargetMachine& machine) {
    llvm::SmallString<0> result;
    llvm::raw_svector_ostream stream(result);
    llvm::legacy::PassManager passes;
    // Cannot fail: NVPTX supports this file type.
    machine.addPassesToEmitFile(passes, stream, nullptr, llvm::CodeGenFileType::AssemblyFile);
    passes.run(module);
    return std::string(result);
  }

  mlir::MLIRContext context_{mlir::MLIRContext::Threading::DISABLED};
  std::map<uint32_t, std::unique_ptr<llvm::TargetMachine>> machines_;
};

Compiler& compiler() {
  thread_local Compiler compiler;
  return compiler;
}

}  // namespace

Status compile(const Kernel& kernel, const GpuTarget& target, GpuCode* code) {
  return compiler().run(kernel, target, code);
}

Status compile_to_llvm(const Kernel& kernel, const GpuTarget& target, llvm::LLVMContext& context,
                       std::unique_ptr<llvm::Module>* module, Recipe* recipe) {
  return compiler().to_llvm(kernel, target, context, module, recipe);
}

}  // namespace torch_remote::codegen::gpu
