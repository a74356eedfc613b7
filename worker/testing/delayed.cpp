#include "worker/testing/delayed.h"

#include <cstdlib>

#include "worker/device/machine.h"
#include "worker/device/testing/delayed_device.h"
#include "worker/runner/plugin_runner.h"
#include "worker/runner/testing/delayed_runner.h"

namespace torch_remote::worker::testing {

Status open_delayed_device(remote::Transport&, const ServerOptions& options, std::function<tr_client()>,
                           OpenDevice* opened) {
  const char* seed = std::getenv("TORCH_REMOTE_TEST_DELAYS");
  auto device = std::make_unique<DelayedDevice>(
      DelayedDevice::Options{.seed = seed ? std::strtoull(seed, nullptr, 10) : 1,
                             .limit = options.memory_limit ? options.memory_limit : machine_memory()});
  std::unique_ptr<Runner> plugin;
  Status status =
      make_plugin_runner(options.executor, {.threads = options.threads, .memory = &device->scratch()}, &plugin);
  if (!status.ok()) return status;
  opened->runners.push_back(make_delayed_runner(*device, std::move(plugin)));
  opened->device = std::move(device);
  return {};
}

}  // namespace torch_remote::worker::testing
