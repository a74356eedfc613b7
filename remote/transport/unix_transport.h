#pragma once

#include <memory>

#include "remote/transport/memory_access.h"
#include "remote/transport/transport.h"

namespace torch_remote::remote {

// A transport over a connected Unix socket, which it owns, with shared memory. `access`: what the peer may do with this
// end's memory.
std::unique_ptr<Transport> make_unix_transport(int socket, MemoryAccess access);

}  // namespace torch_remote::remote
