#pragma once

#include <memory>

#include "remote/transport/memory_access.h"
#include "remote/transport/transport.h"

namespace torch_remote::remote {

std::unique_ptr<Transport> make_unix_transport(int socket, MemoryAccess access);

}  // namespace torch_remote::remote
