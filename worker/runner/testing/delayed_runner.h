#pragma once

#include <memory>

#include "worker/device/testing/delayed_device.h"
#include "worker/runner/runner.h"

namespace torch_remote::worker::testing {

// Has another runner do its nodes as work of a DelayedDevice: late, at addresses that only work can reach. Failures of
// nodes come late too, and later nodes run on, as they do on a GPU. `inner` finds its memory in the device's scratch.
std::unique_ptr<Runner> make_delayed_runner(DelayedDevice& device, std::unique_ptr<Runner> inner);

}  // namespace torch_remote::worker::testing
