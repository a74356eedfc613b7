#pragma once

#include <optional>
#include <string_view>

#include "worker/targets/cuda/ops/plan/plan_builder.h"

namespace torch_remote::worker::cuda {

// A scratch tensor without dims, of a complex dtype, that contains a number argument. Nothing if the argument is absent
// or a tensor, or if the dtype is complex32.
std::optional<OpTensor> complex_number(OpNode& node, PlanBuilder& plan, std::string_view name, ir::DType dtype);

}  // namespace torch_remote::worker::cuda
