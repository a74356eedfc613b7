#pragma once

#include <memory>

#include "worker/device/device.h"
#include "worker/runner/runner.h"

namespace torch_remote::worker::reference {

// Executes matmuls (mm, bmm, addmm, baddbmm, mv, dot) of real floating dtypes by the definition: each element is a sum
// in float64, in the order of the inner dim, rounded once. No library is used.
std::unique_ptr<Runner> make_matmul_runner(Device& device);

}  // namespace torch_remote::worker::reference
