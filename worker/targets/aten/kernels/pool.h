#pragma once

#include "ir/graph.h"
#include "worker/targets/aten/kernels/special.h"

namespace torch_remote::worker::aten {

// For 2-dim max pooling of floats whose indices nobody reads: computes the values alone, bit for bit torch's. Null for
// every other node.
Special find_pool(const ir::Node& node, const ir::Graph& graph);

}  // namespace torch_remote::worker::aten
