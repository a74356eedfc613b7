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
  iovec piece{bytes.data(), bytes.size()};
  alignas(cmsghdr) char ancillary[CMSG_SPACE(sizeof(int))];
  msghdr header{};
  header.msg_iov = &piece;
  header.msg_iovlen = 1;
  header.msg_control = ancillary;
  // Without its padding, the buffer has space for one descriptor. The kernel closes any others.
  header.msg_controllen = CMSG_LEN(sizeof(int));
  const ssize_t n = TEMP_FAILURE_RETRY(recvmsg(socket, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC));
  if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return {ErrorCode::kTimeout, "remote: timeout"};
  if (n <= 0) return {ErrorCode::kLost, "remote: the other process is gone"};
  *message = {static_cast<Control>(bytes[0]), std::string(bytes.data() + 1, static_cast<size_t>(n) - 1), -1};
  for (cmsghdr* part = CMSG_FIRSTHDR(&header); part; part = CMSG_NXTHDR(&header, part)) {
    if (part->cmsg_level == SOL_SOCKET && part->cmsg_type == SCM_RIGHTS) {
      std::memcpy(&message->descriptor, CMSG_DATA(part), sizeof(int));
    }
  }
  return {};
}

}  // namespace torch_remote::worker
