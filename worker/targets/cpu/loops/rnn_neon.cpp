#define TORCH_REMOTE_ISA neon
#include "worker/targets/cpu/loops/rnn_loops.h"

namespace torch_remote::worker::aten {

const RnnLoops kRnnNeon = {neon::forward_blocks, neon::backward_blocks, neon::forward_weights, neon::backward_weights,
                           neon::pack_forward,   neon::pack_backward,   neon::forward,         neon::backward};

}  // namespace torch_remote::worker::aten
