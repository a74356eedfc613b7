#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>

#include "remote/transport/byte_stream.h"
#include "remote/transport/stream_transport.h"
#include "remote/transport/testing/conformance.h"
#include "remote/transport/unix_transport.h"

namespace torch_remote::remote {
namespace {

TransportPair unix_pair() {
  int sockets[2];
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets), 0);
  return {make_unix_transport(sockets[0]), make_unix_transport(sockets[1])};
}

TransportPair stdio_pair() {
  std::signal(SIGPIPE, SIG_IGN);
  int to[2], from[2];
  EXPECT_EQ(pipe2(to, O_CLOEXEC), 0);
  EXPECT_EQ(pipe2(from, O_CLOEXEC), 0);
  return {std::make_unique<StreamTransport>(make_pipe_stream(from[0], to[1], "pipes"), StreamTransport::Options()),
          std::make_unique<StreamTransport>(make_pipe_stream(to[0], from[1], "pipes"), StreamTransport::Options())};
}

}  // namespace

std::vector<TransportKind> transport_kinds() {
  return {{"inproc", make_inproc_transport}, {"unix", unix_pair}, {"stdio", stdio_pair}};
}

}  // namespace torch_remote::remote
