#include "tests/emulated_gpu/emulator/image.h"

#include <algorithm>
#include <utility>

#include "llvm/Bitcode/BitcodeReader.h"
#include "llvm/Bitcode/BitcodeWriter.h"
#include "llvm/ExecutionEngine/Orc/CompileUtils.h"
#include "llvm/ExecutionEngine/Orc/LLJIT.h"
#include "llvm/IR/Verifier.h"
#include "llvm/Passes/PassBuilder.h"
#include "llvm/Support/TargetSelect.h"
#include "llvm/Support/raw_ostream.h"
#include "llvm/Target/TargetMachine.h"
#include "tests/emulated_gpu/emulator/runtime.h"

namespace torch_remote::codegen::emulator {
namespace {

// The same target on all machines, so that findings and results are the same. It lacks the native conversion to bf16,
// which flushes denormals to 0.
constexpr const char* kTriple = "x86_64-unknown-linux-gnu";
constexpr const char* kCpu = "x86-64-v3";

// The kernel in a list, which may be const; nullptr: the list does not have it.
auto* kernel_named(auto& kernels, std::string_view name) {
  const auto found = std::ranges::find(kernels, name, &KernelImage::name);
  return found == kernels.end() ? nullptr : &*found;
}

Status failed(const char* what, llvm::Error error) {
  return Status::internal("emulator: " + std::string(what) + ": " + llvm::toString(std::move(error)));
}

llvm::orc::JITTargetMachineBuilder target() {
  static const bool initialized = [] {
    LLVMInitializeX86TargetInfo();
    LLVMInitializeX86Target();
    LLVMInitializeX86TargetMC();
    LLVMInitializeX86AsmPrinter();
    return true;
  }();
  (void)initialized;
  llvm::orc::JITTargetMachineBuilder builder{llvm::Triple(kTriple)};
  builder.setCPU(kCpu);
  builder.setRelocationModel(llvm::Reloc::PIC_);
  builder.getOptions().AllowFPOpFusion = llvm::FPOpFusion::Strict;
  return builder;
}

void optimize(llvm::Module& module, llvm::TargetMachine& machine) {
  llvm::LoopAnalysisManager loops;
  llvm::FunctionAnalysisManager functions;
  llvm::CGSCCAnalysisManager components;
  llvm::ModuleAnalysisManager modules;
  llvm::PassBuilder passes(&machine);
  passes.registerModuleAnalyses(modules);
  passes.registerCGSCCAnalyses(components);
  passes.registerFunctionAnalyses(functions);
  passes.registerLoopAnalyses(loops);
  passes.crossRegisterProxies(loops, functions, components, modules);
  passes.buildPerModuleDefaultPipeline(llvm::OptimizationLevel::O2).run(module, modules);
}

Status define_runtime(llvm::orc::LLJIT& jit, llvm::orc::JITDylib& library) {
  llvm::orc::SymbolMap symbols;
  for (const RuntimeSymbol& symbol : runtime_symbols()) {
    symbols[jit.mangleAndIntern(symbol.name)] = {llvm::orc::ExecutorAddr::fromPtr(symbol.address),
                                                 llvm::JITSymbolFlags::Exported};
  }
  if (llvm::Error error = library.define(llvm::orc::absoluteSymbols(std::move(symbols)))) {
    return failed("the runtime has no place", std::move(error));
  }
  return {};
}

}  // namespace

Image::Image() = default;
Image::~Image() = default;

Status Image::rewrite(llvm::StringRef bitcode, bool checked, uint64_t tag, std::unique_ptr<Image>* rewritten) {
  if (__builtin_cpu_supports("avx2") == 0 || __builtin_cpu_supports("fma") == 0) {
    return {ErrorCode::kUnsupported, "emulator: needs a CPU with AVX2 and FMA"};
  }
  llvm::LLVMContext context;
  auto module = llvm::parseBitcodeFile(llvm::MemoryBufferRef(bitcode, "kernels"), context);
  if (!module) return failed("no bitcode", module.takeError());
  auto builder = target();
  auto machine = builder.createTargetMachine();
  if (!machine) return failed("no target", machine.takeError());

  std::unique_ptr<Image> image(new Image);
  if (Status status = emulator::rewrite(**module, **machine, checked, tag, &image->rewritten_); !status) return status;
  std::string problem;
  llvm::raw_string_ostream stream(problem);
  if (llvm::verifyModule(**module, &stream)) {
    return Status::internal("emulator: what it made of the module is no valid IR: " + problem);
  }
  llvm::raw_svector_ostream bytes(image->bitcode_);
  llvm::WriteBitcodeToFile(**module, bytes);

  // The JIT only links. A JIT that compiles keeps a target machine of half a megabyte.
  auto jit = llvm::orc::LLJITBuilder()
                 .setJITTargetMachineBuilder(std::move(builder))
                 .setCompileFunctionCreator([](llvm::orc::JITTargetMachineBuilder made) {
                   return std::make_unique<llvm::orc::ConcurrentIRCompiler>(std::move(made));
                 })
                 .setPlatformSetUp(llvm::orc::setUpInactivePlatform)
                 .create();
  if (!jit) return failed("no JIT", jit.takeError());
  image->jit_ = std::move(*jit);
  image->addresses_.resize(image->globals().size());
  if (!image->globals().empty()) {
    llvm::orc::JITDylib* library = nullptr;
    if (Status status = image->link(nullptr, &library); !status) return status;
    for (const DeviceVariable& global : image->globals()) {
      if (Status status = image->find_symbol(*library, global.image, &image->images_.emplace_back()); !status)
        return status;
    }
  }
  *rewritten = std::move(image);
  return {};
}

Status Image::link(const KernelImage* only, llvm::orc::JITDylib** library) {
  llvm::LLVMContext context;
  auto module = llvm::parseBitcodeFile({{bitcode_.data(), bitcode_.size()}, "kernels"}, context);
  if (!module) return failed("no bitcode", module.takeError());
  for (const KernelImage& kernel : rewritten_.kernels) {
    if (&kernel != only) (*module)->getFunction(kRunPrefix + kernel.name)->eraseFromParent();
  }
  auto machine = target().createTargetMachine();
  if (!machine) return failed("no target", machine.takeError());
  optimize(**module, **machine);
  auto object = llvm::orc::SimpleCompiler(**machine)(**module);
  if (!object) return failed("code generation", object.takeError());
  auto made = jit_->createJITDylib(only == nullptr ? "variables" : only->name);
  if (!made) return failed("no library", made.takeError());
  *library = &*made;
  if (Status status = define_runtime(*jit_, *made); !status) return status;
  if (llvm::Error error = jit_->addObjectFile(*made, std::move(*object))) {
    return failed("the code is not taken", std::move(error));
  }
  return {};
}

Status Image::find_symbol(llvm::orc::JITDylib& library, const std::string& name, void** address) const {
  auto found = jit_->lookup(library, name);
  if (!found) return failed("a symbol is missing", found.takeError());
  *address = found->toPtr<void*>();
  return {};
}

const KernelImage* Image::find(std::string_view kernel) const { return kernel_named(rewritten_.kernels, kernel); }

Status Image::compile(std::string_view name, const KernelImage** compiled) {
  KernelImage* const kernel = kernel_named(rewritten_.kernels, name);
  if (kernel == nullptr) return Status::invalid("emulator: the module has no kernel '" + std::string(name) + "'");
  if (kernel->run == nullptr) {
    llvm::orc::JITDylib* library = nullptr;
    if (Status status = link(kernel, &library); !status) return status;
    for (size_t i = 0; i < globals().size(); ++i) {
      void* place = nullptr;
      if (Status status = find_symbol(*library, globals()[i].pointer, &place); !status) return status;
      *static_cast<void**>(place) = addresses_[i];
    }
    void* address = nullptr;
    if (Status status = find_symbol(*library, kRunPrefix + kernel->name, &address); !status) return status;
    kernel->run = reinterpret_cast<void (*)(void* const*)>(address);
  }
  *compiled = kernel;
  return {};
}

}  // namespace torch_remote::codegen::emulator
