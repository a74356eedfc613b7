#define TORCH_REMOTE_ISA neon
#include "worker/targets/cpu/loops/gemm_loops.h"

namespace torch_remote::worker::kernels {

const GemmLoops kGemmNeon = {neon::run, neon::convert};

}  // namespace torch_remote::worker::kernels
