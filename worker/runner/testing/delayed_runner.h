#pragma once

#include <memory>

#include "ir/status.h"
#include "worker/device/testing/delayed_device.h"
#include "worker/runner/plugin.h"
#include "worker/runner/runner.h"

namespace torch_remote::worker::testing {

// Has another runner do its nodes as work of a DelayedDevice: late, at addresses that only work can reach. Failures of
// nodes come late too, and later nodes run on, as they do on a GPU. `inner` finds its memory in the device's scratch.
std::unique_ptr<Runner> make_delayed_runner(DelayedDevice& device, std::unique_ptr<Runner> inner);

// A device, and on it a plugin's runner with so many threads (0: its default).
Status make_delayed_plugin(const tr_runner_api* api, int threads, const DelayedDevice::Options& options,
                           std::unique_ptr<Device>* device, std::unique_ptr<Runner>* runner);

}  // namespace torch_remote::worker::testing
