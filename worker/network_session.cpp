#include "worker/network_session.h"

#include <poll.h>
#include <spdlog/spdlog.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "remote/net/resuming_transport.h"
#include "remote/net/tcp.h"
#include "remote/transport/stream_transport.h"
#include "worker/control_socket.h"

namespace torch_remote::worker {
namespace {

using remote::Greeted;
using remote::Opening;
using remote::Patience;
using remote::ResumingTransport;

// What every connection of a session is made from.
struct Maker {
  int control;
  const ListenOptions& options;
  std::shared_ptr<const remote::TlsContext> tls;
  uint64_t most_attached;

  // Owns the socket.
  Status connect(int socket, const Opening& opening, const remote::Resumed* resumed, const remote::Admit& admit,
                 Greeted* greeted, std::unique_ptr<remote::StreamTransport>* transport) const {
    const Patience patience(remote::kProofTime);
    std::string description = (tls ? "tls " : "tcp ") + remote::peer_of(socket);
    std::unique_ptr<remote::ByteStream> stream;
    remote::ChannelBinding binding{};
    if (tls) {
      if (Status status = start_tls(socket, tls, {}, patience, std::move(description), &stream, &binding);
          !status.ok()) {
        return status;
      }
    } else {
      stream = remote::make_socket_stream(socket, std::move(description));
    }
    const remote::Proof proof{options.token, resumed, options.lease, options.heartbeat};
    if (Status status = prove_worker(*stream, opening, tls ? &binding : nullptr, proof, admit, patience, greeted);
        !status.ok()) {
      return status;
    }
    *transport = std::make_unique<remote::StreamTransport>(
        std::move(stream), remote::StreamTransport::Options{.memory = nullptr, .most_attached = most_attached});
    return {};
  }
};

// Asks the listener, which answers within a second.
Status ask_for_room(int control, const remote::SessionId& session) {
  const auto lost = [] { return Status(ErrorCode::kLost, "remote: the worker ends"); };
  if (!send_control(control, Control::kAsks, {reinterpret_cast<const char*>(session.data()), session.size()})) {
    return lost();
  }
  for (;;) {
    pollfd polled{control, POLLIN, 0};
    (void)poll(&polled, 1, 1000);
    ControlMessage message;
    const Status status = receive_control(control, &message);
    if (status.code() == ErrorCode::kTimeout) continue;
    if (!status.ok()) return lost();
    if (message.type == Control::kAdmitted) return {};
    if (message.type == Control::kRefused) return {ErrorCode::kUnsupported, message.body};
  }
}

// Later connections, as the listener hands them over.
class Returning {
 public:
  Returning(const Maker& maker, const Greeted& greeted, int interrupt)
      : maker_(maker), greeted_(greeted), interrupt_(interrupt) {}

  Status operator()(bool, std::chrono::milliseconds step, const ResumingTransport::Freeze& freeze,
                    ResumingTransport::Connection* connection) {
    const Status not_yet = {ErrorCode::kTimeout, "remote: timeout"};
    pollfd polled[] = {{maker_.control, POLLIN, 0}, {interrupt_, POLLIN, 0}};
    if (poll(polled, 2, static_cast<int>(step.count())) <= 0) return not_yet;
    ControlMessage message;
    const Status status = receive_control(maker_.control, &message);
    if (status.code() == ErrorCode::kLost) return {ErrorCode::kUnsupported, "remote: the worker ends"};
    if (!status.ok()) return not_yet;
    Opening opening;
    if (message.type != Control::kReturns || message.body.size() != sizeof(opening) || message.descriptor < 0) {
      if (message.descriptor >= 0) close(message.descriptor);
      return not_yet;
    }
    std::memcpy(&opening, message.body.data(), sizeof(opening));
    const remote::Resumed resumed{greeted_.session, greeted_.key, 0};
    const remote::Admit admit = [&freeze](remote::SessionId*, uint64_t* received) {
      *received = freeze();
      return Status();
    };
    Greeted again;
    if (Status made = maker_.connect(message.descriptor, opening, &resumed, admit, &again, &connection->transport);
        !made.ok()) {
      spdlog::warn("{}", made.message());
      return not_yet;
    }
    spdlog::info("a session goes on over {}", connection->transport->description());
    connection->received = again.received;
    return {};
  }

 private:
  const Maker& maker_;
  const Greeted greeted_;
  const int interrupt_;
};

}  // namespace

Status serve_network_client(int socket, const Opening& opening, int control, const ListenOptions& options,
                            std::shared_ptr<const remote::TlsContext> tls, const ServerOptions& server,
                            SessionStatus* counts) {
  const Maker maker{control, options, std::move(tls), server.memory_limit ? server.memory_limit : UINT64_MAX};
  const remote::Admit admit = [control](remote::SessionId* session, uint64_t*) {
    remote::fill_random(*session);
    return ask_for_room(control, *session);
  };
  Greeted greeted;
  ResumingTransport::Connection first;
  if (Status status = maker.connect(socket, opening, nullptr, admit, &greeted, &first.transport); !status.ok()) {
    return status;
  }
  spdlog::debug("serving {}", first.transport->description());
  ServerOptions its = server;
  if (Status status = options.load(&its); !status.ok()) its.unavailable = status;
  its.greeting = std::max<std::chrono::milliseconds>(its.greeting, options.lease);  // it may have to be sent again
  ResumingTransport::Options how;
  how.lease = options.lease;
  how.heartbeat = options.heartbeat;
  how.reconnect_always = true;
  const int interrupt = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  how.interrupt = [interrupt] {
    const uint64_t one = 1;
    (void)!write(interrupt, &one, sizeof(one));
  };
  std::unique_ptr<remote::Transport> transport =
      std::make_unique<ResumingTransport>(std::move(first), how, Returning(maker, greeted, interrupt));
  if (counts != nullptr) transport = std::make_unique<CountingTransport>(std::move(transport), counts);
  return serve(*transport, its);
}

}  // namespace torch_remote::worker
