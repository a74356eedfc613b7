#pragma once

#include "worker/targets/target.h"

namespace torch_remote::worker {

// This machine's memory, and runners that are slow and exact: interpreted LoopIR, and matmuls by definition. The ATen
// plugin executes the other ops, if there is one. Nothing is fused, compiled or measured, so results do not depend on
// timing. `remote-replay --compare worker` compares other targets with it (docs/tools.md).
Target reference_target();

}  // namespace torch_remote::worker
