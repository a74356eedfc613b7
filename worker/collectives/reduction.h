#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "ir/dtype.h"
#include "ir/status.h"

// What ranks' tensors become when a collective op combines them, element by element.
namespace torch_remote::worker {

enum class Reduction : uint8_t { kSum, kAvg, kProduct, kMin, kMax, kBand, kBor, kBxor };

// torch's names in small letters: "sum", "avg", "band", ...
std::optional<Reduction> reduction_from_name(std::string_view name);
std::string_view name(Reduction reduction);

// Whether elements of this type can be combined so; the error names what can.
Status check_reduction(ir::DType dtype, Reduction reduction);

// result[i] = sources[0][i] and sources[1][i] and ..., in this order, for `count` elements; `result` may be one of the
// sources. Half types are added up in f32 and rounded once. Integers wrap around, averages of them are cut towards 0; a
// bool is 0 or 1: sum, max and bor are "or", product, min and band "and". NaNs win in min and max.
void reduce(ir::DType dtype, Reduction reduction, std::span<const void* const> sources, void* result, int64_t count);

}  // namespace torch_remote::worker
