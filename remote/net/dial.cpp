#include "remote/net/dial.h"

#include <atomic>
#include <cstdio>
#include <utility>

#include "remote/net/handshake.h"
#include "remote/net/resuming_transport.h"
#include "remote/net/tcp.h"
#include "remote/net/token.h"
#include "remote/net/worker_url.h"
#include "remote/wire/environment.h"

namespace torch_remote::remote {
namespace {

// A bit more than the bytes that may be in flight (remote/client/types.h).
constexpr size_t kMostKept = (size_t{512} << 20) + (size_t{32} << 20);
// An outage shorter than this causes no message.
constexpr std::chrono::seconds kQuiet{3};
constexpr std::string_view kPrefix = "remote: ";  // of error messages

// Connects to one worker.
class Dialer {
 public:
  static Status open(const std::string& url, const DialOptions& options, std::shared_ptr<Dialer>* dialer) {
    auto made = std::make_shared<Dialer>();
    WorkerUrl parsed;
    if (Status status = parse_worker_url(url, &parsed); !status) return status;
    made->side_.tls = parsed.is_tls();
    made->address_ = std::move(parsed.address);
    made->side_.host = made->address_.host;
    made->side_.name = made->address_.text();
    made->token_ = options.token;
    made->side_.token = made->token_;
    made->time_ = options.time;
    if (Status status = TlsContext::for_keys(TlsContext::Side::kClient, &made->keys_); !status) return status;
    made->side_.keys = made->keys_.get();
    if (made->side_.tls) {
      if (Status status = TlsContext::for_client(options.tls, &made->certificates_); !status) return status;
      made->side_.certificates = made->certificates_.get();
    }
    *dialer = std::move(made);
    return {};
  }

  // Makes one connection, for a new session or for `resumed`. *ended is true if the listener says that it has no such
  // session.
  Status connect(const SessionToResume* resumed, const KeepWaiting& keep_waiting, HandshakeResult* handshake,
                 std::unique_ptr<StreamTransport>* transport, bool* ended) const {
    const Deadline deadline(time_, keep_waiting);
    int socket = -1;
    *ended = false;
    if (Status status = connect_tcp(address_, deadline, &socket); !status) return status;
    std::unique_ptr<ByteStream> stream;
    if (Status status = client_handshake(socket, side_, resumed, deadline, handshake, &stream, ended); !status)
      return status;
    *transport = std::make_unique<StreamTransport>(std::move(stream), StreamTransport::Options());
    return {};
  }

  const std::string& name() const { return side_.name; }
  void interrupt() { interrupted_ = true; }
  bool interrupted() const { return interrupted_; }

 private:
  Address address_;
  ClientSide side_;
  std::string token_;
  std::chrono::milliseconds time_{};
  std::shared_ptr<const TlsContext> certificates_, keys_;
  std::atomic<bool> interrupted_{false};
};

// Reconnects a client whose connection broke. It tries until the lease is over, which ResumingTransport ends. Errors of
// the network do not stop it, because a tunnel or load balancer that restarts refuses connections, too. Only the
// listener itself can say that the session is gone.
class Reconnector {
 public:
  Reconnector(std::shared_ptr<Dialer> dialer, const HandshakeResult& handshake)
      : dialer_(std::move(dialer)), handshake_(handshake) {}

  Status operator()(bool broken, std::chrono::milliseconds, const ResumingTransport::Freeze& freeze,
                    ResumingTransport::Connection* connection) {
    if (!broken) return {ErrorCode::kTimeout, "remote: timeout"};
    if (broken_since_ == Deadline::Clock::time_point()) broken_since_ = Deadline::Clock::now();
    const SessionToResume resumed{handshake_.key, ++attempts_, freeze()};
    HandshakeResult again;
    bool ended = false;
    const auto goes_on = [this] {
      say_what_is_waited_for();
      return !dialer_->interrupted();
    };
    Status status = dialer_->connect(&resumed, goes_on, &again, &connection->transport, &ended);
    connection->received = again.received;
    if (status.ok()) {
      if (said_) std::fprintf(stderr, "remote: the connection to the worker at %s is back\n", dialer_->name().c_str());
      broken_since_ = {};
      said_ = false;
      return status;
    }
    why_ = status.message().substr(status.message().starts_with(kPrefix) ? kPrefix.size() : 0);
    say_what_is_waited_for();
    return ended ? status : Status(ErrorCode::kLost, status.message());
  }

 private:
  void say_what_is_waited_for() {
    if (said_ || Deadline::Clock::now() - broken_since_ < kQuiet) return;
    said_ = true;
    std::fprintf(stderr,
                 "remote: the connection to the worker at %s broke; trying to connect again for %lld s, as long as it "
                 "keeps the session%s%s\n",
                 dialer_->name().c_str(), static_cast<long long>(handshake_.lease.count() / 1000),
                 why_.empty() ? "" : ". The last attempt: ", why_.c_str());
  }

  std::shared_ptr<Dialer> dialer_;
  HandshakeResult handshake_;
  uint64_t attempts_ = 0;
  Deadline::Clock::time_point broken_since_;
  std::string why_;
  bool said_ = false;  // whether the message about this outage was printed
};

}  // namespace

TlsFiles tls_files_from_environment() {
  return {environment_value("TORCH_REMOTE_TLS_CERT"), environment_value("TORCH_REMOTE_TLS_KEY"),
          environment_value("TORCH_REMOTE_TLS_CA")};
}

Status dial_options_from_environment(DialOptions* options) {
  options->tls = tls_files_from_environment();
  return read_token_from_environment(&options->token);
}

Status dial(const std::string& url, const DialOptions& options, const KeepWaiting& keep_waiting,
            std::unique_ptr<Transport>* transport) {
  std::shared_ptr<Dialer> dialer;
  if (Status status = Dialer::open(url, options, &dialer); !status) return status;
  HandshakeResult handshake;
  ResumingTransport::Connection first;
  bool ended = false;
  if (Status status = dialer->connect(nullptr, keep_waiting, &handshake, &first.transport, &ended); !status) {
    return status;
  }
  ResumingTransport::Options how;
  how.lease = handshake.lease;
  how.heartbeat = handshake.heartbeat;
  how.max_unacknowledged_bytes = kMostKept;
  how.interrupt = [dialer] { dialer->interrupt(); };
  *transport = std::make_unique<ResumingTransport>(std::move(first), how, Reconnector(dialer, handshake));
  return {};
}

}  // namespace torch_remote::remote
