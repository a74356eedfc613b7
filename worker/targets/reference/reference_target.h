#pragma once

#include "worker/targets/target.h"

namespace torch_remote::worker {

// This machine's memory, and runners that are slow and exact: interpreted LoopIR, and matmuls by definition. The ATen
// plugin executes the other ops, if there is one. Nothing is fused, compiled or measured, so results do not depend on
// timing. It is what other targets are compared with (docs/tools.md).
Target reference_target();

}  // namespace torch_remote::worker
