#pragma once

#include "worker/targets/target.h"

namespace torch_remote::worker {

// This machine's memory and processor. If the options name a library that compiles, the runners of compiled kernels
// come before the ATen plugin.
Target cpu_target();
// Opens its only device.
Status open_cpu(remote::Transport& transport, const DeviceOptions& options,
                std::function<tr_client_activity()> client_activity, OpenDevice* opened);

}  // namespace torch_remote::worker
