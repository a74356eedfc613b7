#pragma once

#include <memory>

#include "remote/net/handshake.h"
#include "remote/net/tls.h"
#include "worker/process/listen_options.h"
#include "worker/process/status_file.h"
#include "worker/server/server.h"

namespace torch_remote::worker {

// The life of a session's process whose client came over a network and said `opening`: answers, lets the client in or
// not, asks the listener (over `control`) for room, loads what sessions need, serves, and takes its client's later
// connections from the listener. Owns both descriptors. `tls` is null for tcp://; `counts` may be null.
//
// After the first handshake neither token nor private key is needed: the token in `options` is overwritten and `tls` is
// let go, so a caller that keeps no other copy (give both away with std::move) has none left in the process.
Status serve_network_client(int socket, const remote::Opening& opening, int control, ListenOptions options,
                            std::shared_ptr<const remote::TlsContext> tls, const ServerOptions& server,
                            SessionStatus* counts);

}  // namespace torch_remote::worker
