#pragma once

#include "ir/graph.h"
#include "worker/targets/aten/kernels/special.h"

namespace torch_remote::worker::aten {

// Handles the backward pass of a half-precision norm whose statistics are float32. Torch infers that dtype for
// devices other than the CPU, in programs of torch.compile. Calls the CPU's kernel, which takes the statistics in the
// input's precision. Null for any other node.
Special find_norm(const ir::Node& node, const ir::Graph& graph);

}  // namespace torch_remote::worker::aten
