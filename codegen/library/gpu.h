#pragma once

#include "codegen/library/codegen_api.h"
#include "codegen/loop/loop_ir.h"
#include "ir/status.h"

namespace torch_remote::codegen {

// Reads and verifies a kernel in text form.
Status read_kernel(const char* text, size_t size, Kernel* kernel);

// The library's compile_gpu. gpu.cpp has the compiler; no_gpu.cpp, for a library without one, refuses every kernel.
int compile_gpu(const char* text, size_t size, uint32_t sm, tr_gpu_code* code);

}  // namespace torch_remote::codegen
