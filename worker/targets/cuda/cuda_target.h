#pragma once

#include "worker/targets/cuda/kernels/kernel_images.h"
#include "worker/targets/target.h"

namespace torch_remote::worker {

namespace cuda {
struct ProbeSource;
}

// NVIDIA GPUs. If a GPU cannot be opened, the error names what to install.
Target cuda_target();
// For tests. `source`: what --probe uses to open the driver and the libraries. `kernels`: the images that the self-test
// loads; they live as long as the process.
Target cuda_target(cuda::ProbeSource source, cuda::KernelArchive kernels);

}  // namespace torch_remote::worker
