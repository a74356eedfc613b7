#pragma once

#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

#include "worker/targets/cuda/ops/plan/named_plan.h"
#include "worker/targets/cuda/ops/plan/plan_builder.h"

namespace torch_remote::worker::cuda {

// Plans nodes with the expressions and expansions of ops.

// The plan of an op that has an expression or another expansion. Null: it has none.
const NamedPlan* lowered_plan(ir::Opcode opcode);

// Plans the node as one of another op that has an expansion. Its arguments are the first ones of the node.
Status plan_as(PlanBuilder& plan, ir::Opcode opcode);

// Adds the steps of another op that has an expansion, on tensors of the plan. Missing arguments, and results that are
// not computed, are none.
using OpArgument = std::variant<std::monostate, OpTensor, std::vector<int64_t>, int64_t, double, bool>;
Status plan_op(PlanBuilder& plan, ir::Opcode opcode, const std::vector<OpArgument>& args,
               const std::vector<std::optional<OpTensor>>& results);

}  // namespace torch_remote::worker::cuda
