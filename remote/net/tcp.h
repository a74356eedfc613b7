#pragma once

#include <netdb.h>

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

// Parses "HOST:PORT", "[::1]:PORT", or ":PORT" for 127.0.0.1. Returns kInvalid for any other text, with `url` in the
// message.
Status parse_address(std::string_view text, std::string_view url, Address* address);

// Makes a connected non-blocking socket, set up for frames, which the caller owns. Tries the addresses of the host as
// connect_first() does. Errors name the fix. kUnsupported: the host name cannot be resolved. kLost: no address accepts.
// kTimeout: the name server or the last address does not answer in time. kInterrupted: see Deadline.
Status connect_tcp(const Address& address, const Deadline& deadline, int* socket);

// Tries the addresses of the list one after the other, until one accepts. Each of them gets an equal share of the time
// that is left then, so an address that drops packets (often of IPv6) does not keep us from the next one. If none
// accepts, returns the status of the last one: kTimeout, or ok with *error set to an errno. Otherwise sets *error to 0,
// and *socket to a non-blocking socket, which the caller owns.
Status connect_first(const addrinfo* addresses, const Deadline& deadline, int* socket, int* error);

// Makes a non-blocking listening socket on the host's first address; the caller owns the socket. With port 0 the kernel
// chooses one, which is stored in the address. *loopback says whether it is a loopback address, which only this machine
// can reach. Returns kUnsupported if the name cannot be resolved or the address cannot be used.
Status listen_tcp(Address* address, int* socket, bool* loopback);

// Disables Nagle's algorithm and enables keep-alive probes, so that we notice within about a minute that the peer's
// machine is gone. Leaves the buffer sizes to the kernel: it lets them grow further than a program may request
// (net.core.wmem_max).
void set_up_tcp(int socket);

// Whether the other end has a loopback address. It may still be a proxy on this machine, as of ssh, for another one.
bool is_loopback_peer(int socket);

// The address of the other end: "127.0.0.1:40000", "[::1]:40000", or "unknown".
std::string peer_of(int socket);

}  // namespace torch_remote::remote
