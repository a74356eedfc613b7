#pragma once

#include <span>
#include <vector>

#include "worker/targets/aten/kernels/rnn_layer.h"
#include "worker/targets/cpu/loops/rnn_call.h"

// Recurrent layers of float32 by loops of our own: a step's product with the hidden state and its gates are one pass
// over units, with w_hh packed once for all steps. Of more than a few rows, threads take rows and need not wait for
// each other; else they take units and meet after each step. Both give the same numbers.
namespace torch_remote::worker::aten {

// The loops for this processor; null: there are none.
const RnnLoops* rnn_loops();

// Whether the loops do such tensors.
bool takes_fused(const RnnDirection& direction);

// All directions of a layer, with what is kept in their reserves.
std::vector<RnnStates> fused_forward(const RnnLoops& loops, std::span<const RnnDirection> directions);
std::vector<RnnBackward> fused_backward(const RnnLoops& loops, std::span<const RnnDirection> directions,
                                        std::span<const RnnGradients> gradients);

}  // namespace torch_remote::worker::aten
