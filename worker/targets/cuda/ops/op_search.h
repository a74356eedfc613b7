#pragma once

#include "worker/targets/cuda/ops/plan/plan_builder.h"

namespace torch_remote::worker::cuda {

// Whether each element is a member of a contiguous tensor of the same dtype. There are as many elements as `to` has.
Status search_members(PlanBuilder& plan, Location elements, const OpTensor& to, const OpTensor& members, bool inverts);

}  // namespace torch_remote::worker::cuda
