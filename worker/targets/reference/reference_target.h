#pragma once

#include "worker/targets/target.h"

namespace torch_remote::worker {

// A target whose tensors are in this machine's memory. Its own runners are slow and simple, and run on one thread: an
// interpreter of LoopIR, and matmuls as nested loops that sum in double. They fuse, compile and time nothing, so their
// results do not depend on timing. The ATen plugin executes all other ops; without the plugin these ops fail.
// `remote-replay --compare worker` compares other targets with this one (docs/tools.md).
Target reference_target();

}  // namespace torch_remote::worker
