#pragma once

#include <cstddef>
#include <cstdint>

#include "worker/targets/cuda/ops/plan/plan_builder.h"

namespace torch_remote::worker::cuda {

// `from` broadcast to the sizes of `to`, contiguous, converted to `dtype`, and rolled along `dim` by -`by`.
OpTensor broadcast_and_roll(PlanBuilder& plan, const OpTensor& from, const OpTensor& to, ir::DType dtype, size_t dim,
                            int64_t by);

}  // namespace torch_remote::worker::cuda
