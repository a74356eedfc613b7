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
  std::string url;       // unix://PATH, tcp://HOST:PORT, tls://HOST:PORT; no host: 127.0.0.1; port 0: any
  size_t most = 0;       // clients at once, 0: any number. A further one is refused at once with the reason
  std::string token;     // that clients over a network must know; empty: none
  remote::TlsFiles tls;  // with `authorities`, clients need a certificate
  // Of a Unix socket, in addition to this process's own and root.
  std::vector<uid_t> users;
  // A session has the one of these that the fewest others have, the first of those; empty: what ServerOptions says.
  std::vector<DeviceOpener> devices;
  bool gpu = false;  // they, or it, are GPUs: opened once, by a process that ends then, before anybody comes
  std::chrono::milliseconds lease{60'000};     // that a session outlives its connection over a network
  std::chrono::milliseconds heartbeat{5'000};  // remote/net/resuming_transport.h
  std::string status_file;  // where others see what sessions do (worker/process/status_file.h); empty: nowhere
  // Loads what sessions need into this process: called in theirs.
  std::function<Status(ServerOptions*)> load;
  std::vector<std::string> command;  // of this program: its name and arguments. Sessions are started with it
  SandboxOptions sandbox;            // of sessions
};

// What a client that is refused has for its first message.
inline constexpr std::chrono::seconds kToRefuse{5};

}  // namespace torch_remote::worker
