#pragma once

#include <functional>
#include <string>

#include "ir/status.h"
#include "worker/targets/cuda/device/kernel_store.h"
#include "worker/targets/cuda/device/library.h"

namespace torch_remote::worker::cuda {

inline constexpr Library kNvJitLink = {"nvJitLink", "libnvJitLink.so", "nvidia-nvjitlink", "nvjitlink"};

// Fills in `compile` and `version`. Kernels are compiled by the library at `path` (codegen/library/codegen_api.h),
// which is opened by the first of them, to PTX; NVIDIA's nvJitLink, if it is in one of the places, makes machine code
// of it, else the driver does, each time: `tell` is called with a sentence about that. An error if there is no file
// `path`.
Status open_gpu_compiler(const std::string& path, const LibraryPlaces& places,
                         const std::function<void(const std::string&)>& tell, KernelOptions* options);

}  // namespace torch_remote::worker::cuda
