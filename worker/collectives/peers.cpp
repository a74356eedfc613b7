#include "worker/collectives/peers.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <span>
#include <string_view>
#include <utility>

#include "remote/net/deadline.h"
#include "remote/net/token.h"

namespace torch_remote::worker {
namespace {

using remote::Deadline;
using remote::Digest;

constexpr std::array<char, 4> kMagic = {'T', 'R', 'G', 'P'};
constexpr uint8_t kVersion = 2;
// Time for a connecting peer to prove its identity.
constexpr std::chrono::milliseconds kProofTime{5'000};

struct Nonce {
  std::array<uint8_t, 16> bytes{};
};

// The handshake: client hello (connecting end), server hello (accepting end), then a proof from each end.
struct ServerHello {
  Nonce nonce;
  uint32_t capabilities = 0;
};
struct ClientHello {
  std::array<char, 4> magic = kMagic;
  uint8_t version = kVersion;
  std::array<uint8_t, 3> reserved{};
  int32_t rank = 0, size = 0;
  uint32_t capabilities = 0;
  Nonce nonce;
};
static_assert(sizeof(ClientHello) == 36 && sizeof(ServerHello) == 20);

class Socket {
 public:
  explicit Socket(int socket = -1) : socket_(socket) {}
  Socket(Socket&& other) noexcept : socket_(std::exchange(other.socket_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(socket_, other.socket_);
    return *this;
  }
  ~Socket() {
    if (socket_ >= 0) ::close(socket_);
  }
  int get() const { return socket_; }
  int release() { return std::exchange(socket_, -1); }

 private:
  int socket_;
};

Status transfer(int socket, std::span<uint8_t> bytes, bool sends, const Deadline& deadline) {
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t n = sends ? ::send(socket, bytes.data() + done, bytes.size() - done, MSG_NOSIGNAL)
                            : ::recv(socket, bytes.data() + done, bytes.size() - done, 0);
    if (n > 0) {
      done += static_cast<size_t>(n);
    } else if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      if (Status status = deadline.wait(socket, sends ? POLLOUT : POLLIN); !status.ok()) return status;
    } else if (n == 0 || errno != EINTR) {
      return {ErrorCode::kLost, n == 0 ? "the connection was closed" : std::strerror(errno)};
    }
  }
  return {};
}

template <typename T>
Status put(int socket, T value, const Deadline& deadline) {
  return transfer(socket, {reinterpret_cast<uint8_t*>(&value), sizeof(value)}, true, deadline);
}

template <typename T>
Status get(int socket, T* value, const Deadline& deadline) {
  return transfer(socket, {reinterpret_cast<uint8_t*>(value), sizeof(*value)}, false, deadline);
}

Digest prove(const GroupPlan& plan, std::string_view who, const ClientHello& client_hello, int acceptor,
             const ServerHello& server_hello) {
  std::vector<uint8_t> message(who.begin(), who.end());
  const auto add = [&](const auto& value) {
    const auto* bytes = reinterpret_cast<const uint8_t*>(&value);
    message.insert(message.end(), bytes, bytes + sizeof(value));
  };
  add(client_hello);
  add(static_cast<int32_t>(acceptor));
  add(server_hello);
  return remote::hmac_sha256(plan.secret, message);
}

Deadline deadline_of(const OpLimits& limits, std::chrono::milliseconds time) {
  return Deadline(time, limits.interrupted ? remote::KeepWaiting([asked = limits.interrupted] { return !asked(); })
                                           : remote::KeepWaiting());
}

Status connect(const GroupPlan& plan, int to, const Deadline& deadline, Socket* connected, uint32_t* capabilities) {
  int socket = -1;
  const std::string name = plan.name_of(to) + " at " + plan.addresses[to].text();
  Status status = remote::connect_tcp(plan.addresses[to], deadline, &socket);
  if (!status.ok()) {
    return collective_failed(
        "remote: the worker of " + plan.name_of(plan.rank) + " cannot reach the worker of " + name + ": " +
        status.message() +
        "; workers on other machines need an address that the others reach (--peer-host, TORCH_REMOTE_PEER_HOST)");
  }
  *connected = Socket(socket);
  ClientHello client_hello;
  client_hello.rank = plan.rank;
  client_hello.size = static_cast<int32_t>(plan.addresses.size());
  client_hello.capabilities = plan.capabilities;
  remote::fill_random(client_hello.nonce.bytes);
  ServerHello server_hello;
  Digest proof{};
  status = put(socket, client_hello, deadline);
  if (status.ok()) status = get(socket, &server_hello, deadline);
  if (status.ok()) status = put(socket, prove(plan, "connects", client_hello, to, server_hello), deadline);
  if (status.ok()) status = get(socket, &proof, deadline);
  if (!status.ok()) {
    return collective_failed("remote: the worker of " + name + " refused " + plan.name_of(plan.rank) + ": " +
                             status.message() + "; check that both belong to one group and have one version");
  }
  if (!remote::equal(proof, prove(plan, "accepts", client_hello, to, server_hello))) {
    return collective_failed("remote: the process that answers for " + name +
                             " does not know the group's secret; check what listens there");
  }
  *capabilities = server_hello.capabilities;
  return {};
}

// Authenticates a connecting peer. Returns an error if it does not belong to the group, for any reason.
Status let_in(const GroupPlan& plan, int socket, const Mesh& mesh, const Deadline& deadline, int* rank,
              uint32_t* capabilities) {
  ClientHello client_hello;
  ServerHello server_hello;
  server_hello.capabilities = plan.capabilities;
  remote::fill_random(server_hello.nonce.bytes);
  if (Status status = get(socket, &client_hello, deadline); !status.ok()) return status;
  if (client_hello.magic != kMagic || client_hello.version != kVersion || client_hello.rank <= plan.rank ||
      client_hello.rank >= client_hello.size || static_cast<size_t>(client_hello.size) != plan.addresses.size()) {
    return Status::invalid("no member");
  }
  if (Status status = put(socket, server_hello, deadline); !status.ok()) return status;
  Digest proof{};
  if (Status status = get(socket, &proof, deadline); !status.ok()) return status;
  if (!remote::equal(proof, prove(plan, "connects", client_hello, plan.rank, server_hello)) ||
      mesh.has(client_hello.rank)) {
    return Status::invalid("no member");
  }
  *rank = client_hello.rank;
  *capabilities = client_hello.capabilities;
  return put(socket, prove(plan, "accepts", client_hello, plan.rank, server_hello), deadline);
}

}  // namespace

Status PeerListener::open(const std::string& host, std::unique_ptr<PeerListener>* listener) {
  remote::Address address{host, 0};
  int socket = -1;
  bool loopback = false;
  if (Status status = remote::listen_tcp(&address, &socket, &loopback); !status.ok()) {
    return collective_failed(status.message() +
                             " (where the worker waits for those of other ranks: --peer-host, TORCH_REMOTE_PEER_HOST)");
  }
  listener->reset(new PeerListener(std::move(address), socket));
  return {};
}

PeerListener::~PeerListener() { ::close(socket_); }

Status join_rank(const GroupPlan& plan, int to, const OpLimits& limits, Mesh& mesh) {
  Socket socket;
  uint32_t capabilities = 0;
  if (Status status = connect(plan, to, deadline_of(limits, limits.time), &socket, &capabilities); !status.ok()) {
    return status;
  }
  mesh.add(to, socket.release(), capabilities);
  return {};
}

std::string_view take_line(std::string_view& text) {
  const size_t end = std::min(text.find('\n'), text.size());
  const std::string_view line = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return line;
}

bool read_secret(std::string_view digits, std::vector<uint8_t>* secret) {
  for (size_t i = 0; i + 1 < digits.size(); i += 2) {
    uint8_t byte = 0;
    const auto [end, error] = std::from_chars(digits.data() + i, digits.data() + i + 2, byte, 16);
    if (error != std::errc() || end != digits.data() + i + 2) return false;
    secret->push_back(byte);
  }
  return true;
}

Status join(const PeerListener& listener, const GroupPlan& plan, const OpLimits& limits, Mesh& mesh) {
  const int size = static_cast<int>(plan.addresses.size());
  if (plan.rank < 0 || plan.rank >= size || size != mesh.size() || plan.secret.size() < remote::kMinTokenBytes) {
    return Status::invalid("remote: a process group has an invalid rank or no secret");
  }
  const auto deadline = std::chrono::steady_clock::now() + limits.time;
  const auto left = [&] {
    return std::max(std::chrono::milliseconds(0),
                    std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now()));
  };
  const auto wanted = [&](int rank) { return plan.addresses[rank].port != 0 && !mesh.has(rank); };
  for (int to = 0; to < plan.rank; ++to) {
    if (!wanted(to)) continue;
    Socket socket;
    uint32_t capabilities = 0;
    if (Status status = connect(plan, to, deadline_of(limits, left()), &socket, &capabilities); !status.ok())
      return status;
    mesh.add(to, socket.release(), capabilities);
  }
  for (;;) {
    std::string missing;
    for (int from = plan.rank + 1; from < size; ++from) {
      if (wanted(from)) missing += (missing.empty() ? "" : ", ") + std::to_string(from);
    }
    if (missing.empty()) return {};
    if (Status status = deadline_of(limits, left()).wait(listener.socket(), POLLIN); !status.ok()) {
      return collective_failed("remote: the worker of rank " + std::to_string(plan.rank) + " waits at " +
                               listener.address().text() + " for those of ranks " + missing +
                               ", which did not connect" + (status.code() == ErrorCode::kTimeout ? " in time" : "") +
                               "; check that these processes run and that their workers can reach this address");
    }
    Socket socket(::accept4(listener.socket(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (socket.get() < 0) continue;
    int from = -1;
    uint32_t capabilities = 0;
    const Deadline handshake_deadline = deadline_of(limits, std::min(left(), kProofTime));
    if (!let_in(plan, socket.get(), mesh, handshake_deadline, &from, &capabilities).ok()) continue;
    remote::set_up_tcp(socket.get());
    mesh.add(from, socket.release(), capabilities);
  }
}

}  // namespace torch_remote::worker
