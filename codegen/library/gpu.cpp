#include "codegen/library/gpu.h"

#include <cstdio>
#include <vector>

#include "codegen/gpu/compile.h"

namespace torch_remote::codegen {

int compile_gpu(const char* text, size_t size, uint32_t sm, tr_gpu_code* code) {
  Kernel kernel;
  gpu::GpuCode made;
  Status status = read_kernel(text, size, &kernel);
  if (status.ok()) status = gpu::compile(kernel, {.sm = sm}, &made);
  if (!status.ok()) {
    code->unsupported = status.code() == ErrorCode::kUnsupported ? 1 : 0;
    std::snprintf(code->message, sizeof(code->message), "%s", status.message().c_str());
    return 1;
  }
  const std::vector<uint8_t> recipe = gpu::encode(made.recipe);
  code->on_image(code->context, reinterpret_cast<const uint8_t*>(made.ptx.c_str()), made.ptx.size() + 1);
  code->on_recipe(code->context, recipe.data(), recipe.size());
  return 0;
}

}  // namespace torch_remote::codegen
