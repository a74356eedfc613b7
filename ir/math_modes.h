#pragma once

#include <cstdint>

namespace torch_remote::ir {

// What users have said by torch's flags of the arithmetic of a run's products, convolutions and attention, as bits.
// Other ops look at none of it, nor does a worker that has nothing to choose.
using MathModes = uint8_t;
inline constexpr MathModes kTf32Products = 1;      // of f32 may round their operands to tf32
inline constexpr MathModes kTf32Convolutions = 2;  // likewise
inline constexpr MathModes kDeterministic = 4;     // the same bits in each run, or an error

}  // namespace torch_remote::ir
