#pragma once

// Memory for the results of `.cpu()`. Freed large blocks are cached and reused while their pages are resident, up to
// 256 MiB.
namespace torch_remote::frontend {

// Returns the cached memory to the system. Thread safe.
void release_host_memory();

}  // namespace torch_remote::frontend
