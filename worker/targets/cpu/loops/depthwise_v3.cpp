#define TORCH_REMOTE_ISA v3
#include "worker/targets/cpu/loops/depthwise_loops.h"

namespace torch_remote::worker::aten {

const DepthwiseLoops kDepthwiseV3 = {v3::scratch, v3::convolve, v3::sums, v3::add, v3::fold};

}  // namespace torch_remote::worker::aten
