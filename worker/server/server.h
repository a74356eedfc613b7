#pragma once

#include "ir/status.h"
#include "remote/transport/transport.h"
#include "worker/server/server_options.h"

// One session: receives a client's messages, handles them in order, and answers.
namespace torch_remote::worker {

// Runs on the calling thread. Returns ok when the client closes the session or is lost. Returns an error if the
// connection or a message is faulty; the session is over then. Everything that the client had is freed before it
// returns.
Status serve(remote::Transport& transport, const ServerOptions& options);

}  // namespace torch_remote::worker
