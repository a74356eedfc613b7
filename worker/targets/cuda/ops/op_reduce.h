#pragma once

#include <cstdint>
#include <vector>

#include "worker/targets/cuda/ops/plan/plan_builder.h"

namespace torch_remote::worker::cuda {

// Norms over some dims, of floats or complex numbers.
Status norm_over(PlanBuilder& plan, const OpTensor& from, const std::vector<int64_t>& dims, double p,
                 const OpTensor& to);

// Reduces all elements of a tensor to one.
enum class ReduceAll : uint8_t { kSum, kMean, kMax, kMin };
Status reduce_all(PlanBuilder& plan, ReduceAll how, const OpTensor& from, const OpTensor& to);

// Writes the number of elements that are not 0 as an i64.
Status count_nonzero(PlanBuilder& plan, const OpTensor& tensor, Location out);

}  // namespace torch_remote::worker::cuda
