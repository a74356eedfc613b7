#pragma once

#include "worker/targets/cuda/ops/plan/named_plan.h"

namespace torch_remote::worker::cuda {

// The plan of an op. Null: there is none. `of_complex`: an operand is complex, so a plan for complex numbers comes
// first.
const NamedPlan* find_op_plan(ir::Opcode opcode, bool of_complex = false);

// Plans a node. kUnsupported: the plan takes no tensors of these sizes, strides or dtypes, or its steps would access
// other memory than that of the node's tensors.
Status plan_node(const NamedPlan& plan, OpNode& node, OpPlan* made);

}  // namespace torch_remote::worker::cuda
