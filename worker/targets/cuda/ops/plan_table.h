#pragma once

#include "worker/targets/cuda/ops/plan/named_plan.h"

namespace torch_remote::worker::cuda {

// The plan of an op. Null: there is none. `of_complex`: an operand is complex, so a plan for complex numbers comes
// first.
const NamedPlan* find_op_plan(ir::Opcode opcode, bool of_complex = false);

}  // namespace torch_remote::worker::cuda
