#define TORCH_REMOTE_ISA v3
#include "worker/targets/cpu/loops/rnn_loops.h"

namespace torch_remote::worker::aten {

const RnnLoops kRnnV3 = {v3::forward_blocks, v3::backward_blocks, v3::forward_weights, v3::backward_weights,
                         v3::pack_forward,   v3::pack_backward,   v3::forward,         v3::backward};

}  // namespace torch_remote::worker::aten
