#pragma once

#include <memory>

#include "worker/device/device.h"
#include "worker/runner/runner.h"

namespace torch_remote::worker::reference {

// Executes each node alone, by interpreting its LoopIR (codegen::interpret). Slow; no machine code is generated. Each
// reduction has the order that codegen::Order defines, so results do not depend on the machine or its load.
std::unique_ptr<Runner> make_loop_runner(Device& device);

}  // namespace torch_remote::worker::reference
