#pragma once

#include <span>
#include <vector>

#include "worker/targets/aten/kernels/rnn_layer.h"
#include "worker/targets/cpu/loops/rnn_call.h"

// Float32 recurrent layers with our own loops. One pass over the units computes a step's GEMM with the hidden state and
// its gates, with w_hh packed once for all steps. If the batch has more than a few rows, threads partition the rows and
// need not wait for each other. Otherwise they partition the units and synchronize after each step. Both give the same
// numbers.
namespace torch_remote::worker::aten {

// The loops for this processor; null if there are none.
const RnnLoops* rnn_loops();

// Whether the loops support this layer.
bool supports_fused(const RnnDirection& direction);

// Computes all directions of a layer, and fills their reserves.
std::vector<RnnStates> fused_forward(const RnnLoops& loops, std::span<const RnnDirection> directions);
std::vector<RnnBackward> fused_backward(const RnnLoops& loops, std::span<const RnnDirection> directions,
                                        std::span<const RnnGradients> gradients);

}  // namespace torch_remote::worker::aten
