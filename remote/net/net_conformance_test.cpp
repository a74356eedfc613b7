// Runs the conformance suite with the transports over a network.
#include "remote/net/resuming_transport.h"
#include "remote/net/testing/net_pairs.h"
#include "remote/transport/stream_transport.h"
#include "remote/transport/testing/conformance.h"

namespace torch_remote::remote {
namespace {

using Stream = std::unique_ptr<StreamTransport>;

Stream over(std::unique_ptr<ByteStream> stream) {
  return std::make_unique<StreamTransport>(std::move(stream), StreamTransport::Options());
}

std::pair<Stream, Stream> tcp_streams() {
  const auto [a, b] = testing::tcp_sockets();
  return {over(make_socket_stream(a, "tcp")), over(make_socket_stream(b, "tcp"))};
}

TransportPair tcp_pair() { return tcp_streams(); }

TransportPair tls_pair() {
  const testing::Certificates certificates;
  auto [a, b] = testing::tls_streams({"", "", certificates.file("ca.pem")}, certificates.of("worker"), "127.0.0.1");
  EXPECT_TRUE(a.status.ok() && b.status.ok()) << a.status.message() << b.status.message();
  a.stream->use_large_buffers();
  b.stream->use_large_buffers();
  return {over(std::move(a.stream)), over(std::move(b.stream))};
}

TransportPair key_pair() {
  auto [a, b] = testing::key_streams({1}, {1});
  EXPECT_TRUE(a.status.ok() && b.status.ok()) << a.status.message() << b.status.message();
  a.stream->use_large_buffers();
  b.stream->use_large_buffers();
  return {over(std::move(a.stream)), over(std::move(b.stream))};
}

// Sessions that cannot reconnect.
TransportPair resuming_pair() {
  auto [a, b] = tcp_streams();
  const auto make = [](Stream stream) {
    return std::make_unique<ResumingTransport>(
        ResumingTransport::Connection{std::move(stream), 0}, ResumingTransport::Options(),
        [](bool, std::chrono::milliseconds, const ResumingTransport::Freeze&, ResumingTransport::Connection*) {
          return Status(ErrorCode::kUnsupported, "remote: it is gone");
        });
  };
  return {make(std::move(a)), make(std::move(b))};
}

}  // namespace

std::vector<TransportKind> transport_kinds() {
  return {{"tcp", tcp_pair}, {"tls", tls_pair}, {"key", key_pair}, {"resuming", resuming_pair}};
}

}  // namespace torch_remote::remote
