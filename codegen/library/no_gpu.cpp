#include <cstdio>

#include "codegen/library/gpu.h"

namespace torch_remote::codegen {

int compile_gpu(const char*, size_t, uint32_t, tr_gpu_code* code) {
  code->unsupported = 1;
  std::snprintf(code->message, sizeof(code->message), "this library compiles kernels for the CPU only");
  return 1;
}

}  // namespace torch_remote::codegen
