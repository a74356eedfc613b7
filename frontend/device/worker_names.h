#pragma once

#include <c10/core/Device.h>

#include <memory>
#include <string>
#include <vector>

#include "ir/status.h"
#include "remote/providers/provider.h"

// Which worker each device has. Names that this process connects to itself are in remote/providers/provider.h; all
// others are asked of Python (torch_remote.providers.registry.connect), which starts what has to be started.
namespace torch_remote::frontend {

inline constexpr int kMostWorkers = 16;

// How many there are: those that the environment names when this is first called, and those that were added.
int worker_count() noexcept;
// A device more, at most kMostWorkers: its index. Throws if there is no room. Thread safe.
c10::DeviceIndex add_device(const std::string& worker);
// Another worker from the device's next connection on. Thread safe.
void set_worker(c10::DeviceIndex device, const std::string& worker);
// Of all devices.
std::vector<std::string> worker_names();
// The device's, as it is now.
Status worker_name(c10::DeviceIndex device, std::string* name);

// Connects to the worker of that name. Called without the GIL; may take long, and asks `go_on`. For kInterrupted
// `keep_raised` is called, with the GIL, where Python has raised what interrupted it.
Status open_worker(c10::DeviceIndex device, const std::string& name, const remote::WorkerFiles& files,
                   const remote::KeepWaiting& go_on, void (*keep_raised)(), std::unique_ptr<remote::Worker>* worker);

}  // namespace torch_remote::frontend
