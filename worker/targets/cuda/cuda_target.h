#pragma once

#include "worker/targets/target.h"

namespace torch_remote::worker {

namespace cuda {
struct ProbeSource;
}

// NVIDIA GPUs. If a GPU cannot be opened, the error names what to install.
Target cuda_target();
// For tests. `source`: what --probe uses to open the driver and the libraries.
Target cuda_target(cuda::ProbeSource source);

}  // namespace torch_remote::worker
