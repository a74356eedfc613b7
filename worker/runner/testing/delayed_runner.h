#pragma once

#include <memory>

#include "ir/status.h"
#include "worker/device/testing/delayed_device.h"
#include "worker/runner/plugin.h"
#include "worker/runner/runner.h"

namespace torch_remote::worker::testing {

// Lets another runner execute its nodes as work of a DelayedDevice: late, at addresses that only this work can reach.
// Failures of nodes are reported late too, and later nodes still run, as on a GPU. `inner` allocates from the device's
// scratch memory.
std::unique_ptr<Runner> make_delayed_runner(DelayedDevice& device, std::unique_ptr<Runner> inner);

// Makes a device, and on it a plugin's runner with this many threads (0: its default).
Status make_delayed_plugin(const tr_runner_api* api, int threads, const DelayedDevice::Options& options,
                           std::unique_ptr<Device>* device, std::unique_ptr<Runner>* runner);

}  // namespace torch_remote::worker::testing
