#include "worker/targets/reference/reference_target.h"

#include <memory>
#include <utility>

#include "worker/device/host_device.h"
#include "worker/runner/plugin_loader.h"
#include "worker/runner/plugin_runner.h"
#include "worker/targets/reference/loop_runner.h"
#include "worker/targets/reference/matmul_runner.h"

namespace torch_remote::worker {
namespace {

void add_own_runners(Device& device, Runners* runners) {
  runners->push_back(reference::make_loop_runner(device));
  runners->push_back(reference::make_matmul_runner(device));
}

Status open_reference(remote::Transport& transport, const DeviceOptions& options,
                      std::function<tr_client_activity()> client_activity, OpenDevice* opened) {
  auto device =
      std::make_unique<HostDevice>(HostDevice::Options{.transport = &transport,
                                                       .inproc = options.inproc,
                                                       .trusted = options.trusted || !transport.shares_memory(),
                                                       .limit = options.memory_limit});
  add_own_runners(*device, &opened->runners);
  if (options.runner != nullptr) {
    std::unique_ptr<Runner> plugin;
    const PluginOptions plugin_options{options.threads, options.inproc, &device->memory(), std::move(client_activity)};
    if (Status status = make_plugin_runner(options.runner, plugin_options, &plugin); !status.ok()) return status;
    opened->runners.push_back(std::move(plugin));
  }
  opened->device = std::move(device);
  return {};
}

// Without the ATen plugin: it also executes most ops of the device that is compared. It would find nothing wrong there.
Status open_for_comparison(OpenDevice* opened) {
  auto device = std::make_unique<HostDevice>(HostDevice::Options{});
  add_own_runners(*device, &opened->runners);
  opened->device = std::move(device);
  return {};
}

}  // namespace

Target reference_target() {
  return {.name = "reference",
          .about = "this machine, with slow reference implementations, for comparisons",
          .load =
              [](DeviceOptions* options) {
                // Without libtorch, only the ops of its own runners work.
                if (!load_plugin(options->plugin, &options->runner).ok()) options->runner = nullptr;
                return Status();
              },
          .open = [](const std::string&) { return open_reference; },
          .probe = {},
          .open_reference = open_for_comparison};
}

}  // namespace torch_remote::worker
