#pragma once

#include "worker/targets/cuda/kernels/kernel_images.h"

namespace torch_remote::worker::cuda::emulated {

// Kernels that are written by hand, for the driver in software.
KernelArchive written_kernels();

}  // namespace torch_remote::worker::cuda::emulated
