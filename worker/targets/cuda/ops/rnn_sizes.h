#pragma once

#include "worker/targets/cuda/ops/plan/op_node.h"

namespace torch_remote::worker::cuda {

// Whether the sizes and dtypes of a recurrent layer's operands and results match. The node is `remote::rnn` or
// `remote::rnn_backward`.
bool has_rnn_sizes(OpNode& node);

}  // namespace torch_remote::worker::cuda
