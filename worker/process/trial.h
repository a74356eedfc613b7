#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ir/status.h"
#include "worker/process/listen_options.h"
#include "worker/server/server_options.h"

namespace torch_remote::worker {

// The results of a trial run.
struct TrialRun {
  std::vector<std::string> libraries;  // Folders of the libraries that sessions need.
  std::string confined;                // Describes the sandbox of sessions (worker/sandbox/sandbox.h).
  bool failed = false;                 // SandboxReport::failed
};

// Loads what sessions need, opens the GPUs, and enters the sandbox, in a process that then ends. So missing parts cause
// an error before a client connects.
Status run_trial(const ListenOptions& options, const ServerOptions& server, TrialRun* found);

}  // namespace torch_remote::worker
