#pragma once

#include "codegen/lower/launch.h"
#include "ir/status.h"

namespace torch_remote::codegen {

// Moves loops around the kernel (`launch->outer`) into the kernel, as further dims, as many as it may have. It moves
// none if the kernel reduces rows, as each iteration has its own rows. The kernel then reads strided operands directly
// instead of packed copies. The caller loops over what remains in `launch->outer`. kUnsupported: the resulting kernel
// would not be valid.
Status take_in_loops(Launch* launch);

}  // namespace torch_remote::codegen
