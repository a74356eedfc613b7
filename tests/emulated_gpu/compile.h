#pragma once

#include "worker/targets/cuda/device/kernel_store.h"

namespace torch_remote::worker::cuda::emulated {

// Compiles modules, of which the real pipeline makes PTX, to images for the emulated driver. Thread-safe. A target that
// links this also needs @llvm//:static.
Status compile(std::string_view text, uint32_t sm, CompiledKernel* compiled);

}  // namespace torch_remote::worker::cuda::emulated
