#pragma once

#include <c10/util/Exception.h>
#include <torch/version.h>

// What differs between the versions of torch that this project supports. No other file of the client compares versions.

namespace torch_remote::frontend {

// Whether native_group_norm takes inputs that are not contiguous in the memory format that their strides suggest.
inline constexpr bool kGroupNormTakesAnyStrides = TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 14;

}  // namespace torch_remote::frontend

// A dtype that subtraction does not support: torch's CPU kernels raise RuntimeError up to 2.13, and NotImplementedError
// from 2.14 on.
#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 14
#define TORCH_REMOTE_CHECK_SUBTRACTION(...) TORCH_CHECK(__VA_ARGS__)
#else
#define TORCH_REMOTE_CHECK_SUBTRACTION(...) TORCH_CHECK_NOT_IMPLEMENTED(__VA_ARGS__)
#endif
