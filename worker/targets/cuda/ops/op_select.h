#pragma once

#include <cstddef>
#include <optional>
#include <utility>

#include "worker/targets/cuda/ops/plan/plan_builder.h"

namespace torch_remote::worker::cuda {

// If `indices` has a single entry and it is a mask: the mask, and its first dim.
std::optional<std::pair<OpTensor, size_t>> find_mask(const OpNode& node);

// x[mask], whose size depends on data.
Status index_by_mask(OpNode& node, PlanBuilder& plan);

}  // namespace torch_remote::worker::cuda
