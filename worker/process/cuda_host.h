#pragma once

#include <string>

#include "worker/server/server.h"
#include "worker/targets/cuda/device/library.h"
#include "worker/targets/cuda/ops/aten_runner.h"

namespace torch_remote::worker {

// The places where NVIDIA's libraries may be; the driver is not known yet.
cuda::LibraryPlaces library_places();

// Finds libtorch for CUDA next to this worker, if there is one. `plugin`: path of the plugin that uses it.
cuda::AtenSource aten_source(const std::string& plugin);

// Opens the GPU with this number and all its runners. Errors name what must be installed.
DeviceOpener cuda_device_opener(int ordinal);

}  // namespace torch_remote::worker
