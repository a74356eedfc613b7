#pragma once

// Memory for what `.cpu()` returns: large blocks are kept for the next one, warm, up to 256 MiB.
namespace torch_remote::frontend {

// Gives what is kept back to the system. Thread safe.
void release_host_memory();

}  // namespace torch_remote::frontend
