#define TORCH_REMOTE_ISA v4
#include "worker/targets/cpu/loops/depthwise_loops.h"

namespace torch_remote::worker::aten {

const DepthwiseLoops kDepthwiseV4 = {v4::scratch, v4::convolve, v4::sums, v4::add, v4::fold};

}  // namespace torch_remote::worker::aten
