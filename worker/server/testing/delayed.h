#pragma once

#include "worker/server/server.h"

namespace torch_remote::worker::testing {

// For tests: a DelayedDevice, where the plugin's work is done late. $TORCH_REMOTE_TEST_DELAYS: of its delays.
Status open_delayed_device(remote::Transport& transport, const ServerOptions& options,
                           std::function<tr_client()> client_activity, OpenDevice* opened);

}  // namespace torch_remote::worker::testing
