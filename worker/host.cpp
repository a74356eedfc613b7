#include "worker/device/host_device.h"
#include "worker/runner/plugin_runner.h"
#include "worker/server.h"

namespace torch_remote::worker {

Status open_host_device(remote::Transport& transport, const ServerOptions& options,
                        std::function<tr_client()> client_activity, OpenDevice* opened) {
  auto device = std::make_unique<HostDevice>(HostDevice::Options{
      .transport = &transport, .inproc = options.inproc, .trusted = options.trusted, .limit = options.memory_limit});
  std::unique_ptr<Runner> plugin;
  Status status = make_plugin_runner(
      options.runner, {options.threads, options.inproc, &device->memory(), std::move(client_activity)}, &plugin);
  if (!status.ok()) return status;
  device->set_threads(plugin->threads());
  opened->runners.push_back(std::move(plugin));
  opened->device = std::move(device);
  return {};
}

}  // namespace torch_remote::worker
