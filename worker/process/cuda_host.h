#pragma once

#include <string>

#include "worker/server/server.h"
#include "worker/targets/cuda/device/library.h"
#include "worker/targets/cuda/ops/aten_runner.h"

namespace torch_remote::worker {

// Where NVIDIA's libraries may be; what the driver is, is not known yet.
cuda::LibraryPlaces library_places();

// The libtorch for CUDA beside this worker, if there is one. `plugin`: path of the plugin that uses it.
cuda::AtenSource aten_source(const std::string& plugin);

// The GPU of that number, and on it the runners of compiled kernels and of matrix products. Errors name what is to be
// installed.
DeviceOpener cuda_device_opener(int ordinal);

}  // namespace torch_remote::worker
