#pragma once

#include <cstdint>

#include "worker/targets/cuda/ops/plan/plan_builder.h"

namespace torch_remote::worker::cuda {

// Sorts rows of u64 keys, overwriting `keys`. Returns where the sorted keys and their original positions (u32) are.
struct Sorted {
  Location keys, positions;
};
Sorted sort_rows(PlanBuilder& plan, Location keys, int64_t rows, int64_t length);
// The same for a tensor's elements along a dim.
Status sort_tensor(PlanBuilder& plan, const OpTensor& tensor, Location packed, const OuterLengthInner& dims,
                   bool descending, Sorted* sorted);

}  // namespace torch_remote::worker::cuda
