#pragma once

#include "ir/graph.h"
#include "worker/targets/aten/kernels/special.h"

namespace torch_remote::worker::aten {

// For 2-dim max pooling of floating-point tensors whose indices are unused: computes the values alone, bit for bit as
// torch does. Null for any other node.
Special find_pool(const ir::Node& node, const ir::Graph& graph);

}  // namespace torch_remote::worker::aten
