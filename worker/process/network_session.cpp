#include "worker/process/network_session.h"

#include <poll.h>
#include <spdlog/spdlog.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstddef>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "remote/net/resuming_transport.h"
#include "remote/net/tcp.h"
#include "remote/net/worker_url.h"
#include "remote/transport/stream_transport.h"
#include "worker/process/control_socket.h"

namespace torch_remote::worker {
namespace {

using remote::ClientHello;
using remote::Deadline;
using remote::ResumingTransport;

// Limits for reconnecting clients: time for a handshake, and concurrent handshakes. Newer ones replace older ones: a
// client that connects again has given up its earlier connection.
constexpr std::chrono::seconds kReturnTime{5};
constexpr size_t kMostReturns = 2;
constexpr std::chrono::seconds kWriteTime{1};
constexpr unsigned kSecondsToEnd = 2;  // After SIGTERM; a run that takes longer ends with the process.

std::unique_ptr<remote::StreamTransport> frames_over(remote::PendingClient& pending_client,
                                                     uint64_t max_attachment_bytes) {
  return std::make_unique<remote::StreamTransport>(
      std::move(pending_client.stream),
      remote::StreamTransport::Options{.memory = nullptr, .max_attachment_bytes = max_attachment_bytes});
}

std::string describe(int socket, const ListenOptions& options) {
  return (remote::scheme_of(options.url) == remote::WorkerUrl::Scheme::kTls ? "tls " : "tcp ") +
         remote::peer_of(socket);
}

// Asks the listener to admit the client; it answers within a second.
Status request_admission(int control, const remote::Digest& session_key) {
  const auto lost = [] { return Status(ErrorCode::kLost, "remote: the worker ends"); };
  const remote::Digest routing = remote::routing_key(session_key);
  if (!send_control(control, Control::kAdmissionRequest,
                    {reinterpret_cast<const char*>(routing.data()), routing.size()})) {
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

// SIGTERM, which also comes when the listener has ended (session_process.cpp), no longer ends the process, but makes
// the returned descriptor readable. For the calling thread and the threads that it starts.
int block_sigterm() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  return signalfd(-1, &signals, SFD_NONBLOCK | SFD_CLOEXEC);
}

// Later connections, as the listener hands them over. Each handshake has a thread of its own, so that the session's
// keeper continues with heartbeats and acknowledgements whatever the other end does.
class Reconnects {
 public:
  Reconnects(int control, const ListenOptions& options, uint64_t max_attachment_bytes, const remote::Digest& session,
             std::shared_ptr<const remote::TlsContext> keys)
      : control_(control),
        options_(options),
        max_attachment_bytes_(max_attachment_bytes),
        session_(session),
        keys_(std::move(keys)),
        wake_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
        terminated_(block_sigterm()) {}
  ~Reconnects() {
    for (const auto& reconnect : reconnects_) reconnect->given_up = true;
    for (const auto& reconnect : reconnects_) reconnect->thread.join();
    close(wake_);
    if (terminated_ >= 0) close(terminated_);
  }
  Reconnects(const Reconnects&) = delete;
  Reconnects& operator=(const Reconnects&) = delete;

  void interrupt() const {
    const uint64_t one = 1;
    (void)!write(wake_, &one, sizeof(one));
  }

  Status next(std::chrono::milliseconds step, const ResumingTransport::Freeze& freeze,
              ResumingTransport::Connection* connection) {
    Status not_yet = {ErrorCode::kTimeout, "remote: timeout"};
    pollfd polled[] = {{control_, POLLIN, 0}, {wake_, POLLIN, 0}, {terminated_, POLLIN, 0}};
    if (poll(polled, 3, static_cast<int>(step.count())) <= 0) return not_yet;
    if (polled[2].revents != 0) {
      alarm(kSecondsToEnd);
      return worker_ends();
    }
    if (polled[1].revents != 0) {
      uint64_t count = 0;
      (void)!read(wake_, &count, sizeof(count));
    }
    if (polled[0].revents != 0) {
      if (Status status = take_from_listener(); !status.ok()) return status;
    }
    return take_known(freeze, connection) ? Status() : not_yet;
  }

 private:
  struct Reconnect {
    std::thread thread;
    std::atomic<bool> given_up{false}, done{false};
    Status status;  // `status` and `applicant` are valid once `done`.
    remote::PendingClient pending_client;
  };

  static Status worker_ends() { return {ErrorCode::kUnsupported, "remote: the worker ends"}; }

  Status take_from_listener() {
    ControlMessage message;
    const Status status = receive_control(control_, &message);
    if (status.code() == ErrorCode::kLost) return worker_ends();
    if (!status.ok()) return {};
    ClientHello client_hello;
    if (message.type != Control::kReconnect || message.body.size() != sizeof(client_hello) || message.descriptor < 0) {
      if (message.descriptor >= 0) close(message.descriptor);
      return {};
    }
    std::memcpy(&client_hello, message.body.data(), sizeof(client_hello));
    if (reconnects_.size() >= kMostReturns) drop(reconnects_.begin());
    Reconnect* const made = reconnects_.emplace_back(std::make_unique<Reconnect>()).get();
    made->thread = std::thread([this, made, client_hello, socket = message.descriptor] {
      const Deadline deadline(kReturnTime, [made] { return !made->given_up; });
      const remote::WorkerSide side{.token = {}, .keys = keys_.get(), .session = &session_};
      made->status =
          authenticate_client(socket, client_hello, side, deadline, describe(socket, options_), &made->pending_client);
      made->done = true;
      interrupt();
    });
    return {};
  }

  // Continues with the newest authenticated client, and drops older connections.
  bool take_known(const ResumingTransport::Freeze& freeze, ResumingTransport::Connection* connection) {
    for (size_t i = reconnects_.size(); i-- > 0;) {
      if (!reconnects_[i]->done) continue;
      reconnects_[i]->thread.join();
      const std::unique_ptr<Reconnect> reconnect = std::move(reconnects_[i]);
      reconnects_.erase(reconnects_.begin() + static_cast<std::ptrdiff_t>(i));
      if (!reconnect->status.ok()) {
        spdlog::warn("{}", reconnect->status.message());
        continue;
      }
      while (i-- > 0) drop(reconnects_.begin());
      remote::PendingClient& pending_client = reconnect->pending_client;
      connection->received = pending_client.received;
      // So few bytes are sent without blocking.
      if (Status status =
              accept_client(pending_client, freeze(), options_.lease, options_.heartbeat, Deadline(kWriteTime));
          !status.ok()) {
        spdlog::warn("{}", status.message());
        return false;
      }
      spdlog::info("a session goes on over {}", pending_client.stream->description());
      connection->transport = frames_over(pending_client, max_attachment_bytes_);
      return true;
    }
    return false;
  }

  void drop(const std::deque<std::unique_ptr<Reconnect>>::iterator& reconnect) {
    (*reconnect)->given_up = true;
    (*reconnect)->thread.join();
    reconnects_.erase(reconnect);
  }

  const int control_;
  const ListenOptions& options_;
  const uint64_t max_attachment_bytes_;
  const remote::Digest session_;
  const std::shared_ptr<const remote::TlsContext> keys_;
  const int wake_;
  const int terminated_;                               // Readable after SIGTERM.
  std::deque<std::unique_ptr<Reconnect>> reconnects_;  // Used by the session's keeper thread; the newest is last.
};

}  // namespace

Status serve_network_client(int socket, const ClientHello& client_hello, int control, ListenOptions options,
                            std::shared_ptr<const remote::TlsContext> tls, const ServerOptions& server,
                            SessionStatus* counts) {
  std::shared_ptr<const remote::TlsContext> keys;
  if (Status status = remote::TlsContext::for_keys(remote::TlsContext::Side::kWorker, &keys); !status.ok()) {
    close(socket);
    return status;
  }
  const Deadline deadline(remote::kAuthenticationTimeout);
  remote::PendingClient pending_client;
  const remote::WorkerSide side{.token = options.token, .certificates = tls.get(), .keys = keys.get()};
  Status status = authenticate_client(socket, client_hello, side, deadline, describe(socket, options), &pending_client);
  remote::wipe(&options.token);
  tls.reset();
  if (!status.ok()) return status;
  if (status = request_admission(control, pending_client.key); !status.ok()) {
    refuse(pending_client, status.message(), deadline);
    return {ErrorCode::kUnsupported,
            "remote: " + pending_client.stream->description() + " was refused: " + status.message()};
  }
  const uint64_t max_attachment_bytes = server.memory_limit ? server.memory_limit : UINT64_MAX;
  // From here on the client hears of SIGTERM. No other thread runs yet: load() may start some.
  Reconnects reconnects(control, options, max_attachment_bytes, pending_client.key, std::move(keys));
  if (status = accept_client(pending_client, 0, options.lease, options.heartbeat, deadline); !status.ok())
    return status;
  ResumingTransport::Connection first;
  first.transport = frames_over(pending_client, max_attachment_bytes);
  spdlog::debug("serving {}", first.transport->description());
  ServerOptions its = server;
  if (status = options.load(&its); !status.ok()) its.unavailable = status;
  // The client may have to send it again after a reconnect.
  its.hello_timeout = std::max<std::chrono::milliseconds>(its.hello_timeout, options.lease);
  ResumingTransport::Options how;
  how.lease = options.lease;
  how.heartbeat = options.heartbeat;
  how.reconnect_always = true;
  how.interrupt = [&reconnects] { reconnects.interrupt(); };
  std::unique_ptr<remote::Transport> transport = std::make_unique<ResumingTransport>(
      std::move(first), how,
      [&reconnects](bool, std::chrono::milliseconds step, const ResumingTransport::Freeze& freeze,
                    ResumingTransport::Connection* connection) { return reconnects.next(step, freeze, connection); });
  if (counts != nullptr) transport = std::make_unique<CountingTransport>(std::move(transport), counts);
  return serve(*transport, its);
}

}  // namespace torch_remote::worker
