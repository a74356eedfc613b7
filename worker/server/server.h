#pragma once

#include "ir/status.h"
#include "remote/transport/transport.h"
#include "worker/server/server_options.h"

// One session: receives a client's messages, has them done in order, answers.
namespace torch_remote::worker {

// Runs on the calling thread until the client says goodbye or is gone (ok), or something is wrong with the connection
// or the messages (that error; the session is over). Everything the client had is freed before it returns.
Status serve(remote::Transport& transport, const ServerOptions& options);

}  // namespace torch_remote::worker
