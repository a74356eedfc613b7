#include "remote/transport/unix_transport.h"

#include "remote/transport/byte_stream.h"
#include "remote/transport/stream_transport.h"

namespace torch_remote::remote {

std::unique_ptr<Transport> make_unix_transport(int socket) {
  return make_unix_transport(socket, MemoryAccess::kWritable);
}

std::unique_ptr<Transport> make_unix_transport(int socket, MemoryAccess access) {
  auto stream = make_socket_stream(socket, "unix (shared memory)");
  return std::make_unique<StreamTransport>(std::move(stream),
                                           StreamTransport::Options{.memory = std::make_shared<SharedMemory>(access)});
}

}  // namespace torch_remote::remote
