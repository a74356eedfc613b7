#pragma once

#include "worker/targets/cuda/probe.h"
#include "worker/targets/target.h"

namespace torch_remote::worker {

// NVIDIA GPUs. Errors of opening one name what is to be installed. `source` is what --probe looks at.
Target cuda_target(cuda::ProbeSource source = cuda::nvidia());

}  // namespace torch_remote::worker
