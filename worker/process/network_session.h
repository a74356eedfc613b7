#pragma once

#include <memory>

#include "remote/net/handshake.h"
#include "remote/net/tls.h"
#include "worker/process/listen_options.h"
#include "worker/process/status_file.h"
#include "worker/server/server.h"

namespace torch_remote::worker {

// Runs a session's process whose client connected over a network and sent `client_hello`. It completes the handshake,
// asks the listener (over `control`) to admit the client, loads what sessions need, and serves. Later connections of
// its client come from the listener. Owns both descriptors. `tls` is null for tcp://; `counts` may be null.
Status serve_network_client(int socket, const remote::ClientHello& client_hello, int control, ListenOptions options,
                            std::shared_ptr<const remote::TlsContext> tls, const ServerOptions& server,
                            SessionStatus* counts);

}  // namespace torch_remote::worker
