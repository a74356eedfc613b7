#pragma once

#include <c10/core/Device.h>

#include <memory>
#include <string>
#include <vector>

#include "ir/status.h"
#include "remote/providers/provider.h"

// The worker of each device. This process itself connects to the names that remote/providers/provider.h lists. For all
// other names it calls Python (torch_remote.providers.registry.connect), which starts the worker.
namespace torch_remote::frontend {

inline constexpr int kMaxWorkers = 16;

// Number of workers: those that the environment named at the first call, and those that were added.
int worker_count() noexcept;
// Adds a device and returns its index. Throws if there are kMaxWorkers already. Thread safe.
c10::DeviceIndex add_device(const std::string& worker);
// Sets the worker for the device's next connection. Thread safe.
void set_worker(c10::DeviceIndex device, const std::string& worker);
// The names of all devices' workers.
std::vector<std::string> worker_names();
// The current worker name of the device.
Status worker_name(c10::DeviceIndex device, std::string* name);

// Connects to the worker of that name. Call it without the GIL. It may take long, and polls `go_on`. If Python raised
// KeyboardInterrupt or SystemExit, it calls `store_python_error` with the GIL held and returns kInterrupted.
Status open_worker(c10::DeviceIndex device, const std::string& name, const remote::WorkerFiles& files,
                   const remote::KeepWaiting& go_on, void (*store_python_error)(),
                   std::unique_ptr<remote::WorkerHandle>* worker);

}  // namespace torch_remote::frontend
