#pragma once

#include <functional>
#include <string>
#include <vector>

namespace torch_remote::worker {

// Of a session's process (worker/sandbox/sandbox.h).
struct SandboxOptions {
  bool files = true;                                  // false: Landlock stays off
  bool processes = false;                             // it may start some
  bool network = false;                               // it may open TCP connections and wait for them
  bool gpu = false;                                   // a driver that opens local sockets is used
  std::vector<std::string> readable;                  // files and folders, with what is in them
  std::vector<std::string> writable;                  // folders in which files may be made, changed and removed
  std::string user;                                   // to become; empty: none
  std::function<void(SandboxOptions*)> as_user = {};  // adds what is known once it is that user; may be null
};

}  // namespace torch_remote::worker
