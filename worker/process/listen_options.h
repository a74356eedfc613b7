#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "remote/net/tls.h"
#include "worker/sandbox/sandbox.h"
#include "worker/server/server.h"

namespace torch_remote::worker {

struct ListenOptions {
  std::string url;  // unix://PATH, tcp://HOST:PORT, tls://HOST:PORT. No host: 127.0.0.1; port 0: any free port.
  // Maximum number of concurrent clients; 0: any number. Further clients are refused at once, with the reason.
  size_t max_sessions = 0;
  std::string token;     // The token that clients over a network must know; empty: none.
  remote::TlsFiles tls;  // With `authorities`, clients need a certificate.
  // Users whose processes may connect to a Unix socket, in addition to this process's user and root.
  std::vector<uid_t> users;
  // A session gets the device with the fewest sessions, the first one among equals. Empty: the device of ServerOptions.
  std::vector<DeviceOpener> devices;
  bool opens_first = false;                 // A short-lived process opens the devices once, before any client connects.
  std::chrono::milliseconds lease{60'000};  // How long a session over a network survives a lost connection.
  std::chrono::milliseconds heartbeat{5'000};  // remote/net/resuming_transport.h
  std::string status_file;  // A file that shows to others what sessions do (worker/process/status_file.h); empty: none.
  // Loads what a session needs; called in the session's process.
  std::function<Status(ServerOptions*)> load;
  std::vector<std::string> command;  // Name and arguments of this program, to start sessions with.
  SandboxOptions sandbox;            // The sandbox of sessions.
};

// Time that a client that will be refused has for its first message.
inline constexpr std::chrono::seconds kRefusedHelloTimeout{5};

}  // namespace torch_remote::worker
