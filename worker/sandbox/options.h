#pragma once

#include <functional>
#include <string>
#include <vector>

namespace torch_remote::worker {

// Options for a session's process (worker/sandbox/sandbox.h).
struct SandboxOptions {
  bool files = true;                  // False: Landlock stays off.
  bool processes = false;             // It may start processes.
  bool network = false;               // It may open TCP connections and listen for them.
  bool gpu = false;                   // It uses a driver that opens local sockets.
  std::vector<std::string> readable;  // Files, and folders with their contents.
  std::vector<std::string> writable;  // Folders in which files may be created, changed and removed.
  std::string user;                   // The user to become; empty: no change.
  // Called once the process runs as `user`; adds options that depend on it. May be null.
  std::function<void(SandboxOptions*)> add_user_options = {};
};

}  // namespace torch_remote::worker
