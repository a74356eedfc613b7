#pragma once

#include "ir/status.h"
#include "worker/process/listen_options.h"
#include "worker/server/server.h"

namespace torch_remote::worker {

// Serves clients that connect, each in a process of its own. Clients share no memory, do not wait for each other, and
// are not affected by another session that crashes or runs out of memory.
// The sessions end with this process. This process loads none of the libraries that sessions need. It reads only the
// client hello of a network client (64 bytes, remote/net/handshake.h). TLS and authentication happen in the session's
// process, within kAuthenticationTimeout. A client that reconnects is handed to the process of its session. Returns
// only if it cannot listen, with the reason.
Status listen(const ListenOptions& options, const ServerOptions& server);

}  // namespace torch_remote::worker
