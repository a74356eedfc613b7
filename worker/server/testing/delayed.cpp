#include "worker/server/testing/delayed.h"

#include <cstdlib>

#include "worker/device/machine.h"
#include "worker/runner/testing/delayed_runner.h"

namespace torch_remote::worker::testing {

Status open_delayed_device(remote::Transport&, const DeviceOptions& options, std::function<tr_client_activity()>,
                           OpenDevice* opened) {
  const char* seed = std::getenv("TORCH_REMOTE_TEST_DELAYS");
  std::unique_ptr<Runner> plugin;
  Status status = make_delayed_plugin(options.runner, options.threads,
                                      {.seed = seed ? std::strtoull(seed, nullptr, 10) : 1,
                                       .limit = options.memory_limit ? options.memory_limit : machine_memory()},
                                      &opened->device, &plugin);
  if (status.ok()) opened->runners.push_back(std::move(plugin));
  return status;
}

}  // namespace torch_remote::worker::testing
