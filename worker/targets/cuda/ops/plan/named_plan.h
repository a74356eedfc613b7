#pragma once

#include <string_view>

#include "ir/graph.h"
#include "ir/status.h"
#include "worker/targets/cuda/ops/plan/plan_builder.h"

namespace torch_remote::worker::cuda {

// Adds the steps of a node of the op. kUnsupported: the message says why.
using PlanOp = Status (*)(OpNode& node, PlanBuilder& plan);
struct NamedPlan {
  std::string_view name;
  PlanOp plan;
  // Elements are only copied, or the plan checks dtypes itself. Other plans take only dtypes of is_kernel_dtype.
  bool takes_complex = false;
  bool is_lowered = false;  // Its formula is that of the op's expression or expansion.
};

// The plan "image.resample(Resample::kLinear)" calls image_plans::resample with this argument.
template <auto kFunction, auto... kArguments>
Status plan_with(OpNode& node, PlanBuilder& plan) {
  return kFunction(node, plan, kArguments...);
}

// The plans that the column `cuda` of ir/ops/*.toml names, by opcode and for ops outside the table by name
// (op_plans_generated.h). A plan "sort.topk" is the function sort_plans::topk. Null: there is none for these dtypes.
struct PlannedOp {
  ir::Opcode opcode;
  const NamedPlan *real, *complex;
};
struct PlannedName {
  std::string_view name;
  const NamedPlan *real, *complex;
};

}  // namespace torch_remote::worker::cuda
