#include "remote/net/dial.h"

#include <unistd.h>

#include <atomic>
#include <utility>

#include "remote/net/handshake.h"
#include "remote/net/resuming_transport.h"
#include "remote/net/tcp.h"
#include "remote/net/token.h"
#include "remote/wire/environment.h"

namespace torch_remote::remote {
namespace {

constexpr std::string_view kTcp = "tcp://", kTls = "tls://";
// As much as may be on its way (remote/client/types.h), and a bit.
constexpr size_t kMostKept = (size_t{512} << 20) + (size_t{32} << 20);
// A worker's machine that answers, but has nobody at that port: its listener is gone, and the sessions with it.
constexpr int kMissed = 3;  // heartbeats

// Who connects to one worker.
class Dialer {
 public:
  static Status open(const std::string& url, const DialOptions& options, std::shared_ptr<Dialer>* dialer) {
    auto made = std::make_shared<Dialer>();
    const bool tls = url.starts_with(kTls);
    if (Status status = parse_address(std::string_view(url).substr(kTcp.size()), url, &made->address_); !status) {
      return status;
    }
    made->name_ = made->address_.text();
    made->scheme_ = tls ? "tls " : "tcp ";
    made->token_ = options.token;
    made->time_ = options.time;
    if (tls) {
      if (Status status = TlsContext::for_client(options.tls, &made->tls_); !status) return status;
    }
    *dialer = std::move(made);
    return {};
  }

  // One connection: for a new session, or for that one. *reached: somebody listens there.
  Status connect(const Resumed* resumed, const KeepWaiting& keep_waiting, Greeted* greeted,
                 std::unique_ptr<StreamTransport>* transport, bool* reached) const {
    const Patience patience(time_, keep_waiting);
    int socket = -1;
    *reached = false;
    if (Status status = connect_tcp(address_, patience, &socket); !status) return status;
    *reached = true;
    Opening opening;
    if (Status status = open_connection(socket, tls_ != nullptr, resumed, name_, patience, &opening); !status) {
      close(socket);
      return status;
    }
    std::unique_ptr<ByteStream> stream;
    ChannelBinding binding{};
    if (tls_) {
      if (Status status = start_tls(socket, tls_, address_.host, patience, scheme_ + name_, &stream, &binding);
          !status) {
        return status;
      }
    } else {
      stream = make_socket_stream(socket, scheme_ + name_);
    }
    if (Status status =
            prove_client(*stream, opening, tls_ ? &binding : nullptr, token_, resumed, name_, patience, greeted);
        !status) {
      return status;
    }
    *transport = std::make_unique<StreamTransport>(std::move(stream), StreamTransport::Options());
    return {};
  }

  void interrupt() { interrupted_ = true; }
  bool interrupted() const { return interrupted_; }

 private:
  Address address_;
  std::string name_, scheme_, token_;
  std::chrono::milliseconds time_{};
  std::shared_ptr<const TlsContext> tls_;
  std::atomic<bool> interrupted_{false};
};

// A client that was cut off, and comes back.
class Returning {
 public:
  Returning(std::shared_ptr<Dialer> dialer, const Greeted& greeted) : dialer_(std::move(dialer)), greeted_(greeted) {}

  Status operator()(bool broken, std::chrono::milliseconds, const ResumingTransport::Freeze& freeze,
                    ResumingTransport::Connection* connection) {
    if (!broken) return {ErrorCode::kTimeout, "remote: timeout"};
    const Resumed resumed{greeted_.session, greeted_.key, freeze()};
    Greeted again;
    bool reached = false;
    Status status = dialer_->connect(
        &resumed, [this] { return !dialer_->interrupted(); }, &again, &connection->transport, &reached);
    connection->received = again.received;
    if (status.ok()) {
      refused_since_ = {};
      return status;
    }
    // Nobody is there, but the machine is: for so long the way to it may be what was started anew.
    const auto now = Patience::Clock::now();
    if (status.code() != ErrorCode::kLost || reached) {
      refused_since_ = {};
    } else if (refused_since_ == Patience::Clock::time_point()) {
      refused_since_ = now;
    } else if (now - refused_since_ > kMissed * greeted_.heartbeat) {
      return {ErrorCode::kUnsupported, status.message()};
    }
    const bool final = status.code() == ErrorCode::kUnsupported || status.code() == ErrorCode::kInvalid;
    return final ? status : Status(ErrorCode::kLost, status.message());
  }

 private:
  std::shared_ptr<Dialer> dialer_;
  Greeted greeted_;
  Patience::Clock::time_point refused_since_;
};

}  // namespace

TlsFiles tls_files_from_environment() {
  return {setting("TORCH_REMOTE_TLS_CERT"), setting("TORCH_REMOTE_TLS_KEY"), setting("TORCH_REMOTE_TLS_CA")};
}

Status dial_options_from_environment(DialOptions* options) {
  options->tls = tls_files_from_environment();
  return read_token_from_environment(&options->token);
}

bool is_network_url(std::string_view url) { return url.starts_with(kTcp) || url.starts_with(kTls); }

Status dial(const std::string& url, const DialOptions& options, const KeepWaiting& keep_waiting,
            std::unique_ptr<Transport>* transport) {
  std::shared_ptr<Dialer> dialer;
  if (Status status = Dialer::open(url, options, &dialer); !status) return status;
  Greeted greeted;
  ResumingTransport::Connection first;
  bool reached = false;
  if (Status status = dialer->connect(nullptr, keep_waiting, &greeted, &first.transport, &reached); !status) {
    return status;
  }
  ResumingTransport::Options how;
  how.lease = greeted.lease;
  how.heartbeat = greeted.heartbeat;
  how.most_kept = kMostKept;
  how.interrupt = [dialer] { dialer->interrupt(); };
  *transport = std::make_unique<ResumingTransport>(std::move(first), how, Returning(dialer, greeted));
  return {};
}

}  // namespace torch_remote::remote
