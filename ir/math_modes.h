#pragma once

#include <cstdint>

namespace torch_remote::ir {

// What users have said by torch's flags of the arithmetic of a run, as bits. On GPUs products, convolutions and
// attention look at them; on CPUs all ops look at kDeterministic, and at nothing else.
using MathModes = uint8_t;
inline constexpr MathModes kTf32Products = 1;      // of f32 may round their operands to tf32
inline constexpr MathModes kTf32Convolutions = 2;  // likewise
inline constexpr MathModes kDeterministic = 4;     // the same bits in each run, or an error
inline constexpr MathModes kMayDiffer = 8;         // with kDeterministic: no error where bits may differ

}  // namespace torch_remote::ir
