#define TORCH_REMOTE_ISA neon
#include "worker/targets/cpu/loops/attention_loops.h"

namespace torch_remote::worker::kernels {

const AttentionLoops kAttentionNeon = {
    neon::forward_scratch, neon::backward_scratch, neon::partial_floats, neon::forward, neon::join, neon::backward};

}  // namespace torch_remote::worker::kernels
