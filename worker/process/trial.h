#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ir/status.h"
#include "worker/process/listen_options.h"
#include "worker/server/server_options.h"

namespace torch_remote::worker {

// What a process that did what sessions do found out.
struct Trial {
  std::vector<std::string> libraries;  // folders of the libraries that sessions need
  std::string confined;                // what their sandbox is (worker/sandbox/sandbox.h)
};

// Loads what sessions need, opens GPUs, and confines itself, in a process that ends then: what is missing is an error
// before anybody comes.
Status try_to_load(const ListenOptions& options, const ServerOptions& server, Trial* found);

}  // namespace torch_remote::worker
