#pragma once

#include "ir/graph.h"
#include "worker/targets/aten/kernels/special.h"

namespace torch_remote::worker::aten {

// The special case for nearest-neighbour upsampling of float32 images, or for its gradient: those that become twice as
// high and wide are done here, in torch's order of additions.
Special find_upsample(const ir::Node& node, const ir::Graph& graph);

}  // namespace torch_remote::worker::aten
