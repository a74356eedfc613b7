#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "ir/status.h"
#include "remote/net/deadline.h"

namespace torch_remote::remote {

// Address at which a worker listens: the part of a URL after "tcp://" or "tls://".
struct Address {
  std::string host;  // a name, or an IPv4 or IPv6 address; without brackets
  uint16_t port = 0;

  std::string text() const;  // "host:80", "[::1]:80"
};

// Parses "HOST:PORT", "[::1]:PORT", or ":PORT" for 127.0.0.1. `url` is for the error message.
Status parse_address(std::string_view text, std::string_view url, Address* address);

// Makes a connected socket, set up for frames. Tries the addresses of the host one after the other. Errors name the
// fix: kUnsupported if the host name cannot be resolved, kLost if the host refuses or does not answer, kTimeout,
// kInterrupted.
Status connect_tcp(const Address& address, const Deadline& deadline, int* socket);

// Makes a non-blocking listening socket. With port 0 the kernel chooses one, which is stored in the address. *loopback
// says whether only this machine can reach it.
Status listen_tcp(Address* address, int* socket, bool* loopback);

// Disables Nagle's algorithm and enables keep-alive probes, so that we notice when the peer's machine is gone. Leaves
// the buffer sizes to the kernel: it lets them grow further than a program may request (net.core.wmem_max).
void set_up_tcp(int socket);

// Whether the other end is on this machine.
bool is_loopback_peer(int socket);

// The address of the other end: "127.0.0.1:40000".
std::string peer_of(int socket);

}  // namespace torch_remote::remote
