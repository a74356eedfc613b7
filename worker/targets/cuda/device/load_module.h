#pragma once

#include "ir/status.h"
#include "worker/targets/cuda/device/driver.h"

namespace torch_remote::worker::cuda {

// Whether the driver does not support this form of a module's code, but may support another one: machine code of a
// later CUDA version, machine code for another GPU, or PTX of a later version.
bool is_refused_image(Result result);

// Loads a module; its GPU's context must be current. `image` is as for cuModuleLoadDataEx: machine code, or PTX with
// its terminating NUL. An error contains the driver's log. *refused: is_refused_image().
Status load_module(const Driver& driver, const void* image, Module* module, bool* refused);

}  // namespace torch_remote::worker::cuda
