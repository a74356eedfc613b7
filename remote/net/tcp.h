#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "ir/status.h"
#include "remote/net/patience.h"

namespace torch_remote::remote {

// Where a worker listens: the part of a URL behind "tcp://" or "tls://".
struct Address {
  std::string host;  // a name, or a number of IPv4 or IPv6; without brackets
  uint16_t port = 0;

  std::string text() const;  // "host:80", "[::1]:80"
};

// "HOST:PORT", "[::1]:PORT", or ":PORT" for 127.0.0.1. `url` is for the error.
Status parse_address(std::string_view text, std::string_view url, Address* address);

// A connected socket, set up for frames; the host's addresses are tried one after the other. Errors name the fix:
// kUnsupported for a host that cannot be found, kLost for one that refuses or is silent, kTimeout, kInterrupted.
Status connect_tcp(const Address& address, const Patience& patience, int* socket);

// A listening socket that does not block. Port 0: any; the address gets the one that it is. *loopback: only this
// machine can reach it.
Status listen_tcp(Address* address, int* socket, bool* loopback);

// Small frames go out at once, and a peer whose machine is gone is noticed some time. Buffers are left to the kernel,
// which lets them grow with the connection further than a program may ask for (net.core.wmem_max).
void set_up_tcp(int socket);

// Whether the other end is on this machine.
bool is_loopback_peer(int socket);

// "127.0.0.1:40000": who is at the other end.
std::string peer_of(int socket);

}  // namespace torch_remote::remote
