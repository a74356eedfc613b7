#include "tests/emulated_gpu/compile.h"

#include "codegen/gpu/compile.h"
#include "llvm/ADT/SmallVector.h"
#include "llvm/Bitcode/BitcodeWriter.h"
#include "llvm/IR/LLVMContext.h"
#include "llvm/IR/Module.h"
#include "llvm/Support/raw_ostream.h"
#include "tests/emulated_gpu/emulated_driver.h"

namespace torch_remote::worker::cuda::emulated {

Status compile(std::string_view text, uint32_t sm, CompiledKernel* compiled) {
  codegen::Kernel kernel;
  Status status = codegen::parse_kernel(text, &kernel);
  if (status.ok()) status = codegen::verify(kernel);
  if (!status.ok()) return status;
  llvm::LLVMContext context;
  std::unique_ptr<llvm::Module> module;
  status = codegen::gpu::compile_to_llvm(kernel, {.sm = sm}, context, &module, &compiled->recipe);
  if (!status.ok()) return status;
  llvm::SmallVector<char, 0> bitcode;
  llvm::raw_svector_ostream stream(bitcode);
  llvm::WriteBitcodeToFile(*module, stream);
  compiled->image = make_image(bitcode.data(), bitcode.size());
  return {};
}

}  // namespace torch_remote::worker::cuda::emulated
