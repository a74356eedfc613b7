#pragma once

#include <optional>
#include <string_view>

#include "worker/targets/cuda/ops/plan/plan_builder.h"

namespace torch_remote::worker::cuda {

// A number argument as an element of a complex dtype, without dims. None: it is a tensor, or absent.
std::optional<OpTensor> complex_number(OpNode& node, PlanBuilder& plan, std::string_view name, ir::DType dtype);

}  // namespace torch_remote::worker::cuda
