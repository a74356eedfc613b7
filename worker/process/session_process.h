#pragma once

#include <csignal>
#include <cstdint>
#include <string>
#include <vector>

#include "ir/status.h"
#include "remote/net/handshake.h"
#include "worker/process/listen_options.h"
#include "worker/server/server_options.h"

// A session that a listener starts is the same program, run anew: its memory has nothing of the listener's or of other
// sessions' (not even where things are), and what it needs of them comes in a sealed memory file, which it reads and
// closes. So neither its command line nor its environment has a secret.
namespace torch_remote::worker {

struct SessionStart {
  bool network = false;      // else over a Unix socket
  int client = -1;           // the connected socket
  int control = -1;          // of one over a network (worker/process/control_socket.h)
  int status = -1;           // the status file; -1: there is none
  uint64_t status_slot = 0;  // StatusFile::number_of
  uint64_t device = 0;       // of ListenOptions::devices
  remote::Opening opening;   // of one over a network
  std::string token;
  std::string refusal;                 // why there is no room for it, over a Unix socket; empty: there is
  std::vector<std::string> libraries;  // folders that it may read
};

// Starts `command` (of ListenOptions) with the option that makes it a session. The caller keeps its descriptors.
// `mask`: the signals that are blocked there. `whole_environment`: with all variables but those of secrets, else with
// those only that libraries of a session read.
Status start_session(const SessionStart& start, const std::vector<std::string>& command, const sigset_t& mask,
                     bool whole_environment, pid_t* pid);

// In that process, for the descriptor of its option: reads what start_session gave it.
Status read_session(int descriptor, SessionStart* start);

// The life of that process: serves its client; once that is known, nothing of the token is left here, and the process
// is confined before it loads anything.
Status serve_session(SessionStart start, ListenOptions options, ServerOptions server);

}  // namespace torch_remote::worker
