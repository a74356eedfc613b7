#define TORCH_REMOTE_ISA v4
#include "worker/targets/cpu/loops/attention_loops.h"

namespace torch_remote::worker::kernels {

const AttentionLoops kAttentionV4 = {
    v4::forward_scratch, v4::backward_scratch, v4::partial_floats, v4::forward, v4::join, v4::backward};

}  // namespace torch_remote::worker::kernels
