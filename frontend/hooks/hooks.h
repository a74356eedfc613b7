#pragma once

namespace torch_remote::frontend {

// Registers the hooks, the device guard and the allocators with torch. Called once, at import; starts no worker.
void register_device();

}  // namespace torch_remote::frontend
