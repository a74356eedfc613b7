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

Status plan_node(const NamedPlan& plan, OpNode& node, OpPlan* made) {
  bool has_complex = false, has_others = false;
  ir::for_each_view(node.ir_node(), [&](uint32_t view, bool) {
    const ir::DType dtype = node.graph().views[view].dtype;
    has_complex |= ir::is_complex(dtype);
    has_others |= !ir::is_complex(dtype) && !is_kernel_dtype(dtype);
  });
  if (has_complex && !plan.takes_complex) return unsupported("of complex numbers");
  // index_plans::fill writes copies of one element.
  if (has_others && !plan.takes_complex && plan.plan != index_plans::fill) return unsupported("of these dtypes");
  PlanBuilder builder(node, made);
  Status status = plan.plan(node, builder);
  if (status.ok()) status = builder.finish();
  return status;
}

}  // namespace torch_remote::worker::cuda
