#pragma once

#include "ir/graph.h"
#include "worker/targets/aten/kernels/special.h"

namespace torch_remote::worker::aten {

// For nearest-neighbor upsampling of float32 images, and its gradient: computes images that become twice as high and
// wide here, in torch's order of additions. Null for any other node.
Special find_upsample(const ir::Node& node, const ir::Graph& graph);

}  // namespace torch_remote::worker::aten
