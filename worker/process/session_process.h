#pragma once

#include <csignal>
#include <cstdint>
#include <string>
#include <vector>

#include "ir/status.h"
#include "remote/net/handshake.h"
#include "worker/process/listen_options.h"
#include "worker/server/server_options.h"

// A listener starts a session by executing the same program again. The new process has no memory of the listener or of
// other sessions, not even its address layout. Its input comes in a sealed memory file, which it reads and closes, so
// that neither its command line nor its environment has a secret.
namespace torch_remote::worker {

struct SessionStart {
  bool network = false;              // False: over a Unix socket.
  int client = -1;                   // The connected socket.
  int control = -1;                  // Control socket of a network session (worker/process/control_socket.h); else -1.
  int status = -1;                   // The status file; -1: there is none.
  uint64_t status_slot = 0;          // StatusFile::number_of
  uint64_t device = 0;               // Index into ListenOptions::devices.
  remote::ClientHello client_hello;  // The client hello of a network session.
  std::string token;
  std::string refusal;                 // The reason to refuse a client on a Unix socket; empty: the client is admitted.
  std::vector<std::string> libraries;  // Folders that the session may read.
  bool has_warned = false;             // The listener has warned that protections of sessions could not be set up.
};

// Starts `command` (of ListenOptions) with the option that makes it a session. The descriptors of `start` still belong
// to the caller. `mask`: signals that are blocked in the new process. `whole_environment`: passes all variables except
// secrets; otherwise only those that a session's libraries read.
Status start_session(const SessionStart& start, const std::vector<std::string>& command, const sigset_t& mask,
                     bool whole_environment, pid_t* pid);

// In the session's process: reads what start_session() wrote, from the descriptor that the option names.
Status read_session(int descriptor, SessionStart* start);

// Runs the session's process and serves its client. Once the client is authenticated, the token is erased and the
// process is confined, before it loads anything.
Status serve_session(SessionStart start, ListenOptions options, ServerOptions server);

}  // namespace torch_remote::worker
