#pragma once

#include "worker/targets/cuda/device/kernel_store.h"

namespace torch_remote::worker::cuda::emulated {

// Makes images for the driver in software, of the modules that PTX is made of. Whoever links it also needs
// @llvm//:static. Used by any thread.
Status compile(std::string_view text, uint32_t sm, CompiledKernel* compiled);

}  // namespace torch_remote::worker::cuda::emulated
