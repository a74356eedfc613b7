#define TORCH_REMOTE_ISA v4
#include "worker/targets/cpu/loops/rnn_loops.h"

namespace torch_remote::worker::aten {

const RnnLoops kRnnV4 = {v4::forward_blocks, v4::backward_blocks, v4::forward_weights, v4::backward_weights,
                         v4::pack_forward,   v4::pack_backward,   v4::forward,         v4::backward};

}  // namespace torch_remote::worker::aten
