#define TORCH_REMOTE_ISA neon
#include "worker/targets/cpu/loops/depthwise_loops.h"

namespace torch_remote::worker::aten {

const DepthwiseLoops kDepthwiseNeon = {neon::scratch, neon::convolve, neon::sums, neon::add, neon::fold};

}  // namespace torch_remote::worker::aten
