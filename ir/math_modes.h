#pragma once

#include <cstdint>

namespace torch_remote::ir {

// The user's choices for the arithmetic of a run (torch's flags), as bits. On GPUs they affect matmuls, convolutions,
// attention, norms and recurrent layers. On CPUs all ops read kDeterministic, and none of the others.
using MathModes = uint8_t;
inline constexpr MathModes kTf32Matmuls = 1;       // f32 matmuls may round their operands to tf32
inline constexpr MathModes kTf32Convolutions = 2;  // f32 convolutions may round their operands to tf32
inline constexpr MathModes kDeterministic = 4;     // each run gives the same bits, or an error
// With kDeterministic: no error where bits may differ between runs.
inline constexpr MathModes kDeterministicWarnOnly = 8;

}  // namespace torch_remote::ir
