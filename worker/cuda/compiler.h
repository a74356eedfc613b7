#pragma once

#include <string>

#include "ir/status.h"
#include "worker/cuda/kernel_store.h"

namespace torch_remote::worker::cuda {

// Kernels are compiled by the library at `path` (codegen/library/codegen_api.h), which is opened by the first of them:
// to PTX, of which the driver makes machine code. An error if there is no such file.
Status open_gpu_compiler(const std::string& path, Compile* compile);

}  // namespace torch_remote::worker::cuda
