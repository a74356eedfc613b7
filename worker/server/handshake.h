#pragma once

#include <cstdint>

#include "ir/status.h"
#include "remote/transport/transport.h"
#include "worker/server/inbox.h"
#include "worker/server/server_options.h"
#include "worker/targets/target.h"

namespace torch_remote::worker {

// A session whose client was accepted, and what it executes on.
struct OpenSession : OpenDevice {
  uint64_t number = 0;         // Session number in the headers of all messages.
  uint64_t hello = 0;          // Sequence number of the client hello, to which the worker has replied.
  uint64_t memory_limit = 0;   // The largest limit that the client can set, in bytes.
  bool deterministic = false;  // The client asked for results that do not depend on timing.
  bool reproducible = false;   // The client or TORCH_REMOTE_WAIT_COMPILE asked for them.
};

// Receives the client hello, opens the device, and replies. Returns an error if no client hello arrived, if the client
// was refused (the reply has the reason), or if it is gone. `inbox` must outlive *session.
Status handshake(remote::Transport& transport, Inbox& inbox, const ServerOptions& options, OpenSession* session);

}  // namespace torch_remote::worker
