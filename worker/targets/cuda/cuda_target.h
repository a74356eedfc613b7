#pragma once

#include "worker/targets/cuda/probe.h"
#include "worker/targets/target.h"

namespace torch_remote::worker {

// NVIDIA GPUs. If a GPU cannot be opened, the error names what to install. `source`: what --probe uses to
// open the driver and the libraries; tests replace it.
Target cuda_target(cuda::ProbeSource source = cuda::nvidia());

}  // namespace torch_remote::worker
