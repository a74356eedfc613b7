#include "worker/targets/cuda/ops/plan_table.h"

#include <algorithm>
#include <iterator>

#include "worker/targets/cuda/ops/op_lowered.h"
#include "worker/targets/cuda/ops/op_plans_generated.h"

namespace torch_remote::worker::cuda {

namespace {

// The plan that the op table names.
const NamedPlan* table_plan(ir::Opcode opcode, bool of_complex) {
  const auto plan = [of_complex](const auto& planned) { return of_complex ? planned.complex : planned.real; };
  if (opcode < ir::kFirstOpaque) {
    const auto* const found = std::ranges::lower_bound(kPlannedOps, opcode, {}, &PlannedOp::opcode);
    return found != std::end(kPlannedOps) && found->opcode == opcode ? plan(*found) : nullptr;
  }
  const auto* const found = std::ranges::find(kPlannedNames, ir::op_desc(opcode).name, &PlannedName::name);
  return found != std::end(kPlannedNames) ? plan(*found) : nullptr;
}

}  // namespace

const NamedPlan* find_op_plan(ir::Opcode opcode, bool of_complex) {
  if (of_complex) {
    if (const NamedPlan* const plan = table_plan(opcode, true)) return plan;
  }
  const NamedPlan* const plan = table_plan(opcode, false);
  return plan != nullptr ? plan : lowered_plan(opcode);
}

}  // namespace torch_remote::worker::cuda
