#pragma once

#include "ir/graph.h"
#include "worker/targets/aten/kernels/special.h"

namespace torch_remote::worker::aten {

// For a norm's backward in half precision whose statistics are float, as torch foresees them for devices other than the
// CPU (in programs made by torch.compile): calls CPU's kernel, which wants them in the input's precision. Null for
// every other node.
Special find_norm(const ir::Node& node, const ir::Graph& graph);

}  // namespace torch_remote::worker::aten
