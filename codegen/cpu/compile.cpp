#include "codegen/cpu/compile.h"

#include <time.h>

#include <map>
#include <memory>
#include <utility>

#include "codegen/cpu/emit.h"
#include "codegen/cpu/object.h"
#include "llvm/ADT/SmallString.h"
#include "llvm/Config/llvm-config.h"
#include "llvm/IR/IRBuilder.h"
#include "llvm/IR/InstIterator.h"
#include "llvm/IR/Instructions.h"
#include "llvm/IR/LegacyPassManager.h"
#include "llvm/IR/Module.h"
#include "llvm/MC/TargetRegistry.h"
#include "llvm/Passes/PassBuilder.h"
#include "llvm/Support/CommandLine.h"
#include "llvm/Support/TargetSelect.h"
#include "llvm/Support/raw_ostream.h"
#include "llvm/Target/TargetMachine.h"
#include "llvm/Transforms/InstCombine/InstCombine.h"
#include "llvm/Transforms/Scalar/EarlyCSE.h"
#include "llvm/Transforms/Scalar/LICM.h"
#include "llvm/Transforms/Scalar/LoopPassManager.h"
#include "llvm/Transforms/Scalar/SimplifyCFG.h"
#include "llvm/Transforms/Utils/Cloning.h"
#include "llvm/Transforms/Utils/Mem2Reg.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Target/LLVMIR/Dialect/Builtin/BuiltinToLLVMIRTranslation.h"
#include "mlir/Target/LLVMIR/Dialect/LLVMIR/LLVMToLLVMIRTranslation.h"
#include "mlir/Target/LLVMIR/Export.h"

namespace torch_remote::codegen::cpu {
namespace {

struct Target {
  std::string_view name;
  const char* processor;  // as LLVM names it
  const char* features;   // beyond those of the processor
  Features has;
};
#if defined(__x86_64__)
// For x86-64-v4, LLVM avoids 512-bit registers by default, because most code has few vectors. Ours is all vectors.
constexpr Target kTargets[] = {{"x86-64-v4", "x86-64-v4", "-prefer-256-bit,+prfchw", {.avx512 = true, .masked = true}},
                               {"x86-64-v3", "x86-64-v3", "", {.masked = true}}};
constexpr const char* kTriple = "x86_64-unknown-linux-gnu";
constexpr auto kCodeModel = llvm::CodeModel::Small;
#elif defined(__aarch64__)
constexpr Target kTargets[] = {{"aarch64", "generic", "+neon", {}}};
constexpr const char* kTriple = "aarch64-unknown-linux-gnu";
// Code reaches its constants by their distance, which the linker knows. Other models use the number of their page.
constexpr auto kCodeModel = llvm::CodeModel::Tiny;
#endif

Status unknown(std::string_view name) {
  std::string known;
  for (const Target& target : kTargets) known += (known.empty() ? "" : ", ") + std::string(target.name);
  return {ErrorCode::kUnsupported, "codegen: no target '" + std::string(name) + "'; there are " + known};
}

// Addresses already consist of a base and an index, which x86 supports. Loop strength reduction finds nothing better,
// and takes a quarter of the time. It can be disabled only by this global option. No other code uses this copy of LLVM.
void disable_strength_reduction() {
  const auto& options = llvm::cl::getRegisteredOptions();
  const auto found = options.find("disable-lsr");
  if (found != options.end()) static_cast<llvm::cl::opt<bool>*>(found->second)->setValue(true);
}

std::unique_ptr<llvm::TargetMachine> make_machine(const Target& target) {
  static const bool initialized = [] {
    llvm::InitializeNativeTarget();
    llvm::InitializeNativeTargetAsmPrinter();
    disable_strength_reduction();
    return true;
  }();
  std::string error;
  const llvm::Target* found = initialized ? llvm::TargetRegistry::lookupTarget(kTriple, error) : nullptr;
  llvm::TargetOptions options;
  options.AllowFPOpFusion = llvm::FPOpFusion::Strict;
  return std::unique_ptr<llvm::TargetMachine>(found->createTargetMachine(kTriple, target.processor, target.features,
                                                                         options, llvm::Reloc::PIC_, kCodeModel,
                                                                         llvm::CodeGenOptLevel::Default));
}

// Measures this thread's processor time, so that other threads' work does not count.
class Stopwatch {
 public:
  // Milliseconds since the last lap.
  double lap() {
    const double now = time();
    return now - std::exchange(last_, now);
  }

 private:
  static double time() {
    timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) * 1e-6;
  }

  double last_ = time();
};

// State that a compiling thread reuses for the next kernel.
class Compiler {
 public:
  Compiler() {
    mlir::DialectRegistry registry;
    registry.insert<mlir::LLVM::LLVMDialect>();
    mlir::registerBuiltinDialectTranslation(registry);
    mlir::registerLLVMDialectTranslation(registry);
    context_.appendDialectRegistry(registry);
    context_.loadAllAvailableDialects();
  }

  Status run(const Kernel& kernel, const CompileOptions& options, Code* code) {
    const Target* target = nullptr;
    for (const Target& candidate : kTargets) {
      if (candidate.name == options.target) target = &candidate;
    }
    if (target == nullptr) return unknown(options.target);
    auto& machine = machines_[target];
    if (!machine) machine = make_machine(*target);

    CompileTimes unused;
    CompileTimes& times = options.times == nullptr ? unused : *options.times;
    Stopwatch watch;
    Kernel expanded = kernel;
    expand_functions(expanded);
    times.expand = watch.lap();
    const mlir::OwningOpRef<mlir::ModuleOp> module = emit(expanded, target->has, options.variant, context_);
    times.emit = watch.lap();
    llvm::LLVMContext llvm_context;
    const auto ir = mlir::translateModuleToLLVMIR(*module, llvm_context, "kernel", /*disableVerification=*/true);
    if (!ir) return Status::internal("codegen: MLIR does not translate to LLVM IR");
    times.translate = watch.lap();
    prepare(*ir, *machine);
    optimize(*ir, *machine);
    widen_comparisons(*ir);
    times.optimize = watch.lap();
    if (options.assembly != nullptr) {
      *options.assembly = std::string(generate(*llvm::CloneModule(*ir), *machine, llvm::CodeGenFileType::AssemblyFile));
    }
    const llvm::SmallString<0> object = generate(*ir, *machine, llvm::CodeGenFileType::ObjectFile);
    times.generate = watch.lap();
    if (Status status = link_object(llvm::MemoryBufferRef(object, "kernel"), code); !status) return status;
    times.link = watch.lap();
    return {};
  }

 private:
  static void prepare(llvm::Module& module, llvm::TargetMachine& machine) {
    module.setDataLayout(machine.createDataLayout());
    module.setTargetTriple(machine.getTargetTriple().str());
    for (llvm::Function& function : module) {
      if (function.isDeclaration()) continue;
      function.addFnAttr(llvm::Attribute::NoUnwind);  // omits exception tables
      function.addFnAttr("no-builtins");              // loops must not become calls of memset or memcpy
      function.addFnAttr("prefer-vector-width", "512");
    }
  }

  // The loops are already in their final form, and nothing is called. It remains to simplify, to move invariants out of
  // loops, and to merge common subexpressions. LLVM's whole O3 takes five times as long and gives the same inner loops.
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
    passes.addPass(llvm::PromotePass());
    passes.addPass(llvm::EarlyCSEPass());
    passes.addPass(llvm::InstCombinePass());
    passes.addPass(llvm::createFunctionToLoopPassAdaptor(llvm::LICMPass(llvm::LICMOptions()), /*UseMemorySSA=*/true));
    passes.addPass(llvm::EarlyCSEPass());
    passes.addPass(llvm::SimplifyCFGPass());
    for (llvm::Function& function : module) {
      if (!function.isDeclaration()) passes.run(function, functions);
    }
  }

  // LLVM's passes narrow comparisons of numbers that were loaded from a half type to that type. If such a comparison
  // selects the smaller number, the backend would call fminf, but our code cannot call functions. It compares them as
  // floats anyway.
  static void widen_comparisons(llvm::Module& module) {
    for (llvm::Function& function : module) {
      for (llvm::Instruction& instruction : llvm::instructions(function)) {
        auto* const compare = llvm::dyn_cast<llvm::FCmpInst>(&instruction);
        if (compare == nullptr) continue;
        const llvm::Type& type = *compare->getOperand(0)->getType();
        if (!type.isHalfTy() && !type.isBFloatTy()) continue;
        llvm::IRBuilder<> builder(compare);
        for (const unsigned i : {0u, 1u}) {
          compare->setOperand(i, builder.CreateFPExt(compare->getOperand(i), builder.getFloatTy()));
        }
      }
    }
  }

  static llvm::SmallString<0> generate(llvm::Module& module, llvm::TargetMachine& machine, llvm::CodeGenFileType type) {
    llvm::SmallString<0> result;
    llvm::raw_svector_ostream stream(result);
    llvm::legacy::PassManager passes;
    // Cannot fail: both back ends support both file types.
    machine.addPassesToEmitFile(passes, stream, nullptr, type);
    passes.run(module);
    return result;
  }

  mlir::MLIRContext context_{mlir::MLIRContext::Threading::DISABLED};
  std::map<const Target*, std::unique_ptr<llvm::TargetMachine>> machines_;
};

}  // namespace

std::string_view best_target() { return kTargets[0].name; }

Status compile(const Kernel& kernel, const CompileOptions& options, Code* code) {
  if (options.variant.columns < 0 || options.variant.columns > kMaxFixedColumns) {
    return Status::invalid("codegen: cannot specialize code for rows of " + std::to_string(options.variant.columns) +
                           " elements; the limit is " + std::to_string(kMaxFixedColumns));
  }
  if (kernel.rows > 1) {
    return Status::invalid("codegen: a kernel has " + std::to_string(kernel.rows) +
                           " row dims; the caller must loop over all but the last one");
  }
  thread_local Compiler compiler;
  return compiler.run(kernel, options, code);
}

std::string_view compiler_version() { return "LLVM " LLVM_VERSION_STRING ", codegen 4"; }

}  // namespace torch_remote::codegen::cpu
