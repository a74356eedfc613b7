#define TORCH_REMOTE_ISA v4
#include "worker/targets/cpu/loops/gemm_loops.h"

namespace torch_remote::worker::kernels {

const GemmLoops kGemmV4 = {v4::run, v4::convert};

}  // namespace torch_remote::worker::kernels
