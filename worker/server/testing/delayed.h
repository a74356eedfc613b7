#pragma once

#include "worker/server/server.h"

namespace torch_remote::worker::testing {

// For tests: opens a DelayedDevice, on which the plugin's work is done late. $TORCH_REMOTE_TEST_DELAYS seeds its
// delays.
Status open_delayed_device(remote::Transport& transport, const DeviceOptions& options,
                           std::function<tr_client_activity()> client_activity, OpenDevice* opened);

}  // namespace torch_remote::worker::testing
