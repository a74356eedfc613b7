#define TORCH_REMOTE_ISA v3
#include "worker/targets/cpu/loops/gemm_loops.h"

namespace torch_remote::worker::kernels {

const GemmLoops kGemmV3 = {v3::run, v3::convert};

}  // namespace torch_remote::worker::kernels
