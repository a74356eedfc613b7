#include "remote/net/tcp.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>
#include <thread>

namespace torch_remote::remote {
namespace {

struct FreeAddresses {
  void operator()(addrinfo* list) const { freeaddrinfo(list); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

std::string name_error(const Address& address, int error) {
  return "remote: the name '" + address.host + "' of the worker's machine cannot be found (" +
         (error == EAI_SYSTEM ? std::strerror(errno) : gai_strerror(error)) +
         "); check its spelling, or use the IP address";
}

int look_up(const Address& address, int flags, Addresses* found) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | flags;
  addrinfo* list = nullptr;
  const int error = getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &hints, &list);
  if (error == 0) found->reset(list);
  return error;
}

// A name server may not answer for long, and getaddrinfo cannot be interrupted. So it runs on a thread of its own,
// which is detached.
Status resolve(const Address& address, const Deadline& deadline, Addresses* found) {
  if (look_up(address, AI_NUMERICHOST, found) == 0) return {};
  struct Answer {
    std::atomic<bool> done{false};
    int error = 0;
    Addresses addresses;
  };
  const auto answer = std::make_shared<Answer>();
  std::thread([answer, address] {
    answer->error = look_up(address, AI_ADDRCONFIG, &answer->addresses);
    answer->done = true;
  }).detach();
  while (!answer->done) {
    if (Status status = deadline.check(); !status) {
      if (status.code() != ErrorCode::kTimeout) return status;
      return {ErrorCode::kTimeout, "remote: the name '" + address.host +
                                       "' of the worker's machine was not found in time: no name server answers; check "
                                       "the network, or use the IP address"};
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  if (answer->error != 0) return {ErrorCode::kUnsupported, name_error(address, answer->error)};
  *found = std::move(answer->addresses);
  return {};
}

// Sets *error to 0 if connected, else to an errno.
Status connect_one(const addrinfo& to, const Deadline& deadline, int* socket, int* error) {
  const int made = ::socket(to.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (made < 0) {
    *error = errno;
    return {};
  }
  *error = ::connect(made, to.ai_addr, to.ai_addrlen) == 0 ? 0 : errno;
  Status status;
  if (*error == EINPROGRESS) {
    status = deadline.wait(made, POLLOUT);
    socklen_t size = sizeof(*error);
    if (status.ok()) getsockopt(made, SOL_SOCKET, SO_ERROR, error, &size);
  }
  if (!status.ok() || *error != 0) {
    ::close(made);
  } else {
    *socket = made;
  }
  return status;
}

bool is_loopback(const sockaddr& address) {
  if (address.sa_family == AF_INET) {
    return ntohl(reinterpret_cast<const sockaddr_in&>(address).sin_addr.s_addr) >> 24 == 127;
  }
  return address.sa_family == AF_INET6 &&
         IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr);
}

}  // namespace

std::string Address::text() const {
  const bool number_6 = host.find(':') != std::string::npos;
  return (number_6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

Status parse_address(std::string_view text, std::string_view url, Address* address) {
  const size_t colon = text.rfind(':');
  const std::string_view number = colon == std::string_view::npos ? std::string_view() : text.substr(colon + 1);
  std::string_view host = text.substr(0, colon == std::string_view::npos ? 0 : colon);
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), address->port);
  bool good = !number.empty() && error == std::errc() && end == number.data() + number.size();
  if (host.starts_with('[') && host.ends_with(']')) {
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != std::string_view::npos) {
    good = false;
  }
  if (host.find_first_of("/@?# ") != std::string_view::npos) good = false;
  if (!good) {
    return Status::invalid(
        "remote: '" + std::string(url) +
        "' is not the address of a worker (TORCH_REMOTE_WORKER or --listen); write it like tcp://127.0.0.1:4500 or "
        "tls://[::1]:4500");
  }
  address->host = host.empty() ? "127.0.0.1" : std::string(host);
  return {};
}

Status connect_tcp(const Address& address, const Deadline& deadline, int* socket) {
  Addresses found;
  if (Status status = resolve(address, deadline, &found); !status) return status;
  int error = 0;
  const Status status = connect_first(found.get(), deadline, socket, &error);
  if (status.code() == ErrorCode::kTimeout) {
    return {ErrorCode::kTimeout, "remote: the machine at " + address.text() +
                                     " does not answer; check the address, that the machine runs, and that no "
                                     "firewall drops what is sent to that port"};
  }
  if (!status.ok()) return status;
  if (error == 0) {
    set_up_tcp(*socket);
    return {};
  }
  std::string text = "remote: no worker at " + address.text() + ": " + std::strerror(error);
  if (error == ECONNREFUSED) {
    text += "; start one there: torch-remote-worker --listen tcp://" + address.text() +
            " (one that listens on 127.0.0.1 is not reached from other machines)";
  } else {
    text += "; check the address and the network";
  }
  return {ErrorCode::kLost, text};
}

Status connect_first(const addrinfo* addresses, const Deadline& deadline, int* socket, int* error) {
  int left = 0;
  for (const addrinfo* to = addresses; to != nullptr; to = to->ai_next) ++left;
  Status status;
  for (const addrinfo* to = addresses; to != nullptr; to = to->ai_next, --left) {
    status = connect_one(*to, deadline.first_of(left), socket, error);
    if (status.ok() ? *error == 0 : status.code() != ErrorCode::kTimeout) return status;
  }
  return status;
}

Status listen_tcp(Address* address, int* socket, bool* loopback) {
  Addresses found;
  if (const int error = look_up(*address, AI_PASSIVE, &found); error != 0) {
    return {ErrorCode::kUnsupported, name_error(*address, error)};
  }
  const addrinfo& at = *found;
  const int made = ::socket(at.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  const int on = 1;
  if (made >= 0) setsockopt(made, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (made < 0 || bind(made, at.ai_addr, at.ai_addrlen) != 0 || ::listen(made, SOMAXCONN) != 0) {
    const std::string why = std::strerror(errno);
    if (made >= 0) close(made);
    return {ErrorCode::kUnsupported, "remote: cannot listen on " + address->text() + ": " + why};
  }
  sockaddr_storage bound{};
  socklen_t size = sizeof(bound);
  getsockname(made, reinterpret_cast<sockaddr*>(&bound), &size);
  address->port = ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(bound).sin6_port
                                                    : reinterpret_cast<sockaddr_in&>(bound).sin_port);
  *loopback = is_loopback(*at.ai_addr);
  *socket = made;
  return {};
}

void set_up_tcp(int socket) {
  const auto set = [socket](int level, int name, int value) { setsockopt(socket, level, name, &value, sizeof(value)); };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 30);  // seconds, as for the next option
  set(IPPROTO_TCP, TCP_KEEPINTVL, 10);
  set(IPPROTO_TCP, TCP_KEEPCNT, 3);
}

bool is_loopback_peer(int socket) {
  sockaddr_storage peer{};
  socklen_t size = sizeof(peer);
  return getpeername(socket, reinterpret_cast<sockaddr*>(&peer), &size) == 0 &&
         is_loopback(reinterpret_cast<const sockaddr&>(peer));
}

std::string peer_of(int socket) {
  sockaddr_storage peer{};
  socklen_t size = sizeof(peer);
  char host[64] = "", port[8] = "";
  if (getpeername(socket, reinterpret_cast<sockaddr*>(&peer), &size) != 0 ||
      getnameinfo(reinterpret_cast<sockaddr*>(&peer), size, host, sizeof(host), port, sizeof(port),
                  NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return "unknown";
  }
  return peer.ss_family == AF_INET6 ? "[" + std::string(host) + "]:" + port : std::string(host) + ":" + port;
}

}  // namespace torch_remote::remote
