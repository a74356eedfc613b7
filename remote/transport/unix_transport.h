#pragma once

#include <memory>

#include "remote/transport/lending.h"
#include "remote/transport/transport.h"

namespace torch_remote::remote {

std::unique_ptr<Transport> make_unix_transport(int socket, Lending lending);

}  // namespace torch_remote::remote
