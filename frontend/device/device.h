#pragma once

#include <c10/core/Device.h>

namespace torch_remote::frontend {

// Hooks, device guard, allocators: what torch asks of a device. Called once, at import; starts nothing.
void register_device();

c10::DeviceIndex current_device();
void set_current_device(int device);

}  // namespace torch_remote::frontend
