#include "tests/emulated_gpu/emulator/testing/harness.h"

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "llvm/IR/LLVMContext.h"
#include "llvm/IR/Module.h"
#include "llvm/IRReader/IRReader.h"
#include "llvm/MC/TargetRegistry.h"
#include "llvm/Passes/PassBuilder.h"
#include "llvm/Support/SourceMgr.h"
#include "llvm/Support/TargetSelect.h"
#include "llvm/Target/TargetMachine.h"

namespace torch_remote::codegen::emulator::testing {

void fail(const std::string& what) {
  std::fprintf(stderr, "%s\n", what.c_str());
  std::abort();
}

Status optimize_for_nvptx(llvm::Module& module) {
  static const bool initialized = [] {
    LLVMInitializeNVPTXTargetInfo();
    LLVMInitializeNVPTXTarget();
    LLVMInitializeNVPTXTargetMC();
    return true;
  }();
  (void)initialized;
  const std::string triple = "nvptx64-nvidia-cuda";
  std::string problem;
  const llvm::Target* target = llvm::TargetRegistry::lookupTarget(triple, problem);
  if (target == nullptr) return Status::internal(problem);
  const std::unique_ptr<llvm::TargetMachine> machine(target->createTargetMachine(triple, "sm_80", "+ptx83", {}, {}));
  module.setTargetTriple(triple);
  module.setDataLayout(machine->createDataLayout());
  llvm::LoopAnalysisManager loops;
  llvm::FunctionAnalysisManager functions;
  llvm::CGSCCAnalysisManager components;
  llvm::ModuleAnalysisManager modules;
  llvm::PassBuilder passes(machine.get());
  passes.registerModuleAnalyses(modules);
  passes.registerCGSCCAnalyses(components);
  passes.registerFunctionAnalyses(functions);
  passes.registerLoopAnalyses(loops);
  passes.crossRegisterProxies(loops, functions, components, modules);
  passes.buildPerModuleDefaultPipeline(llvm::OptimizationLevel::O3).run(module, modules);
  return {};
}

std::unique_ptr<Module> load_text(Device& device, const std::string& ir, bool optimize) {
  llvm::LLVMContext context;
  llvm::SMDiagnostic problem;
  const auto module = llvm::parseIR(llvm::MemoryBufferRef(ir, "kernels"), problem, context);
  if (!module) fail("no IR: " + problem.getMessage().str());
  if (optimize) must(optimize_for_nvptx(*module));
  std::unique_ptr<Module> loaded;
  must(Module::load(device, *module, &loaded));
  return loaded;
}

std::unique_ptr<Module> load_file(Device& device, const std::string& path, bool optimize) {
  return load_text(device, read_file(path), optimize);
}

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) fail("no file " + path);
  std::ostringstream content;
  content << file.rdbuf();
  return content.str();
}

}  // namespace torch_remote::codegen::emulator::testing
