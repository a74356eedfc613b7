#pragma once

// Memory for the results of `.cpu()`. Freed large blocks are cached, up to 256 MiB, because reusing mapped pages is
// faster than mapping new ones.
namespace torch_remote::frontend {

// Returns the cached memory to the system. Thread safe.
void release_host_memory();

}  // namespace torch_remote::frontend
