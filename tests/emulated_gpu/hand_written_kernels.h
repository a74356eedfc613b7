#pragma once

#include "worker/targets/cuda/kernels/kernel_images.h"

namespace torch_remote::worker::cuda::emulated {

// The hand-written kernels, compiled for the emulated driver.
KernelArchive hand_written_kernels();

}  // namespace torch_remote::worker::cuda::emulated
