#pragma once

#include <functional>
#include <string>

#include "ir/status.h"
#include "worker/targets/cuda/device/kernel_store.h"
#include "worker/targets/cuda/device/library.h"

namespace torch_remote::worker::cuda {

inline constexpr Library kNvJitLink = {"nvJitLink", "libnvJitLink.so", "nvidia-nvjitlink", "nvjitlink"};

// Fills in `compile`, `assemble`, `warn` and `version`. Kernels are compiled to PTX by the library at `path`
// (codegen/library/codegen_api.h), which is opened for the first kernel. NVIDIA's nvJitLink makes machine code of the
// PTX. If it is not found, the driver compiles the PTX at each load, and `warn` is called with a sentence about that.
// Returns an error if the file `path` does not exist.
Status open_gpu_compiler(const std::string& path, const LibrarySearchPath& search_path,
                         const std::function<void(const std::string&)>& warn, KernelOptions* options);

}  // namespace torch_remote::worker::cuda
