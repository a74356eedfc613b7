#include "tests/emulated_gpu/emulator/image.h"

#include <algorithm>
#include <utility>

#include "llvm/Bitcode/BitcodeReader.h"
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

Status define_runtime(llvm::orc::LLJIT& jit) {
  llvm::orc::SymbolMap symbols;
  for (const RuntimeSymbol& symbol : runtime_symbols()) {
    symbols[jit.mangleAndIntern(symbol.name)] = {llvm::orc::ExecutorAddr::fromPtr(symbol.address),
                                                 llvm::JITSymbolFlags::Exported};
  }
  if (llvm::Error error = jit.getMainJITDylib().define(llvm::orc::absoluteSymbols(std::move(symbols)))) {
    return failed("the runtime has no place", std::move(error));
  }
  return {};
}

}  // namespace

Image::Image() = default;
Image::~Image() = default;

Status Image::compile(llvm::StringRef bitcode, bool checked, uint64_t tag, std::unique_ptr<Image>* compiled) {
  if (__builtin_cpu_supports("avx2") == 0 || __builtin_cpu_supports("fma") == 0) {
    return {ErrorCode::kUnsupported, "emulator: needs a CPU with AVX2 and FMA"};
  }
  auto context = std::make_unique<llvm::LLVMContext>();
  auto module = llvm::parseBitcodeFile(llvm::MemoryBufferRef(bitcode, "kernels"), *context);
  if (!module) return failed("no bitcode", module.takeError());
  auto builder = target();
  auto machine = builder.createTargetMachine();
  if (!machine) return failed("no target", machine.takeError());

  std::unique_ptr<Image> image(new Image);
  if (Status status = rewrite(**module, **machine, checked, tag, &image->rewritten_); !status) return status;
  std::string problem;
  llvm::raw_string_ostream stream(problem);
  if (llvm::verifyModule(**module, &stream)) {
    return Status::internal("emulator: what it made of the module is no valid IR: " + problem);
  }
  optimize(**module, **machine);

  // The JIT only links. A JIT that compiles keeps a target machine of half a megabyte.
  auto object = llvm::orc::SimpleCompiler(**machine)(**module);
  if (!object) return failed("code generation", object.takeError());
  auto jit = llvm::orc::LLJITBuilder()
                 .setJITTargetMachineBuilder(std::move(builder))
                 .setCompileFunctionCreator([](llvm::orc::JITTargetMachineBuilder made) {
                   return std::make_unique<llvm::orc::ConcurrentIRCompiler>(std::move(made));
                 })
                 .setPlatformSetUp(llvm::orc::setUpInactivePlatform)
                 .create();
  if (!jit) return failed("no JIT", jit.takeError());
  image->jit_ = std::move(*jit);
  if (Status status = define_runtime(*image->jit_); !status) return status;
  if (llvm::Error error = image->jit_->addObjectFile(std::move(*object))) {
    return failed("the code is not taken", std::move(error));
  }
  for (KernelImage& kernel : image->rewritten_.kernels) {
    void* address = nullptr;
    if (Status status = image->find(kRunPrefix + kernel.name, &address); !status) return status;
    kernel.run = reinterpret_cast<void (*)(void* const*)>(address);
  }
  for (const DeviceVariable& global : image->globals()) {
    void *bytes = nullptr, *place = nullptr;
    if (Status status = image->find(global.image, &bytes); !status) return status;
    if (Status status = image->find(global.pointer, &place); !status) return status;
    image->images_.push_back(bytes);
    image->pointer_addresses_.push_back(place);
  }
  *compiled = std::move(image);
  return {};
}

Status Image::find(const std::string& name, void** address) const {
  auto found = jit_->lookup(name);
  if (!found) return failed("a symbol is missing", found.takeError());
  *address = found->toPtr<void*>();
  return {};
}

const KernelImage* Image::kernel(std::string_view name) const {
  const auto found = std::find_if(kernels().begin(), kernels().end(), [&](const auto& k) { return k.name == name; });
  return found == kernels().end() ? nullptr : &*found;
}

const void* Image::first_bytes(const DeviceVariable& global) const { return images_[&global - globals().data()]; }

void Image::set_address(const DeviceVariable& global, void* address) {
  *static_cast<void**>(pointer_addresses_[&global - globals().data()]) = address;
}

}  // namespace torch_remote::codegen::emulator
