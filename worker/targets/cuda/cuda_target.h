#pragma once

#include "worker/targets/cuda/probe.h"
#include "worker/targets/target.h"

namespace torch_remote::worker {

// NVIDIA GPUs. If a GPU cannot be opened, the error names what to install. `source`: how --probe opens the driver and
// the libraries.
Target cuda_target(cuda::ProbeSource source = cuda::nvidia());

}  // namespace torch_remote::worker
