#pragma once

namespace torch_remote::frontend {

// Hooks, device guard, allocators: what torch asks of a device. Called once, at import; starts nothing.
void register_device();

}  // namespace torch_remote::frontend
