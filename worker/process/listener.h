#pragma once

#include "ir/status.h"
#include "worker/process/listen_options.h"
#include "worker/server/server.h"

namespace torch_remote::worker {

// Serves clients that connect: each in a process of its own. So clients share nothing, none waits for another one, and
// one whose session crashes or runs out of memory harms none. The sessions end with this process, which loads nothing
// of what they need, and of what clients send reads the 24 bytes of an opening (remote/net/handshake.h): TLS and proofs
// are their processes' business, each of which has seconds for it. A client that comes back to its session is handed to
// that one's process. Returns only if it cannot listen: why.
Status listen(const ListenOptions& options, const ServerOptions& server);

}  // namespace torch_remote::worker
