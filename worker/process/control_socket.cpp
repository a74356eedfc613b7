#include "worker/process/control_socket.h"

#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "remote/transport/byte_stream.h"

namespace torch_remote::worker {
namespace {

constexpr size_t kMostBytes = 4096;

}  // namespace

Status make_control_sockets(int ends[2]) {
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0) return {};
  return system_error("cannot create a socket for a session's process", ErrorCode::kInternal);
}

bool send_control(int socket, Control type, const std::string& body, int descriptor) {
  std::string bytes(1, static_cast<char>(type));
  bytes += body.substr(0, kMostBytes - 1);
  const iovec piece{bytes.data(), bytes.size()};
  return remote::send_pieces(socket, {&piece, 1}, descriptor, MSG_DONTWAIT) == static_cast<ssize_t>(bytes.size());
}

Status receive_control(int socket, ControlMessage* message) {
  std::array<char, kMostBytes> bytes;
  int descriptor;
  const ssize_t n = remote::receive_piece(socket, bytes, &descriptor, MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return {ErrorCode::kTimeout, "remote: timeout"};
  if (n <= 0) return {ErrorCode::kLost, "remote: the other process is gone"};
  *message = {static_cast<Control>(bytes[0]), std::string(bytes.data() + 1, static_cast<size_t>(n) - 1), descriptor};
  return {};
}

}  // namespace torch_remote::worker
