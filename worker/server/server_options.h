#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "ir/status.h"
#include "worker/server/files.h"
#include "worker/targets/target.h"

// The device of a session, and what the session may do.
namespace torch_remote::worker {

struct ServerOptions : DeviceOptions {
  DeviceOpener open_device;                         // Required.
  Status unavailable;                               // Not ok: clients are refused with this error.
  std::chrono::milliseconds hello_timeout{30'000};  // Time that a client has for its first message.
  std::shared_ptr<const Files> files;               // The files that clients may read; null: none.
  std::string python;  // Interpreter of the Python functions that clients may call; empty: clients may call none.
  std::string python_program;  // python_process.py of the package.
  // The address on which the session accepts connections of other workers (worker/collectives); empty: it accepts none.
  std::string peer_host;
  ReferenceOpener open_reference;  // The reference that runs are compared with; null: there is none.
};

}  // namespace torch_remote::worker
