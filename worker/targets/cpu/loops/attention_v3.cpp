#define TORCH_REMOTE_ISA v3
#include "worker/targets/cpu/loops/attention_loops.h"

namespace torch_remote::worker::kernels {

const AttentionLoops kAttentionV3 = {
    v3::forward_scratch, v3::backward_scratch, v3::partial_floats, v3::forward, v3::join, v3::backward};

}  // namespace torch_remote::worker::kernels
