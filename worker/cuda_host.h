#pragma once

#include "worker/server.h"

namespace torch_remote::worker {

// The GPU of that number, and on it the runners of compiled kernels and of matrix products. Errors name what is to be
// installed.
DeviceOpener cuda_device_opener(int ordinal);

}  // namespace torch_remote::worker
