#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "ir/dtype.h"
#include "ir/status.h"

// How collective ops combine the ranks' tensors, element by element.
namespace torch_remote::worker {

enum class Reduction : uint8_t { kSum, kAvg, kProduct, kMin, kMax, kBand, kBor, kBxor };

// torch's names in lower case: "sum", "avg", "band", ...
std::optional<Reduction> reduction_from_name(std::string_view name);
std::string_view name(Reduction reduction);

// Returns an error, with the reductions that are supported, if elements of this type cannot be combined like this.
Status check_reduction(ir::DType dtype, Reduction reduction);

// Combines sources[0][i], sources[1][i], ... in this order into result[i], for `count` elements. `result` may be one of
// the sources. Half types are accumulated in f32 and rounded once. Integers wrap around; their averages are truncated
// toward 0. A bool is 0 or 1: sum, max and bor are "or"; product, min and band are "and". min and max propagate NaNs.
void reduce(ir::DType dtype, Reduction reduction, std::span<const void* const> sources, void* result, int64_t count);

}  // namespace torch_remote::worker
