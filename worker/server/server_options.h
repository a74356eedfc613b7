#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ir/status.h"
#include "remote/transport/transport.h"
#include "worker/collectives/device_collectives.h"
#include "worker/device/device.h"
#include "worker/runner/plugin.h"
#include "worker/runner/runner.h"
#include "worker/server/files.h"

// The device of a session, and what the session may do.
namespace torch_remote::worker {

struct ServerOptions;

// The device of a session, and the runners that execute nodes there, in order.
struct OpenDevice {
  std::unique_ptr<Device> device;
  std::shared_ptr<DeviceCollectives> collectives;  // Null: the device has none.
  Runners runners;
  // The capabilities of runners that execute groups. Without targets, no runner does.
  std::vector<std::string> targets;
  uint32_t group_kinds = 0;
  uint64_t dtypes = 0;
};

// `client_activity` outlives what is opened.
using DeviceOpener = std::function<Status(remote::Transport& transport, const ServerOptions& options,
                                          std::function<tr_client()> client_activity, OpenDevice* opened)>;

// Opens this machine's memory with the plugin's runner. If the options name a library that compiles, the runners of
// compiled kernels come first.
Status open_host_device(remote::Transport& transport, const ServerOptions& options,
                        std::function<tr_client()> client_activity, OpenDevice* opened);

struct ServerOptions {
  DeviceOpener open_device = open_host_device;
  const tr_runner_api* runner = nullptr;  // The plugin.
  Status unavailable;                     // Not ok: there is no runner; clients are refused with this error.
  std::string codegen;                    // Path of the library that compiles kernels; empty: no kernels are compiled.
  std::string plugin;    // Path of the plugin, for a device that opens it on demand; empty: it does not.
  int threads = 0;       // Threads of the runner; 0: its default.
  bool inproc = false;   // The process is the client's own.
  bool trusted = false;  // The client started this process, or is in it: its uploads are used in place.
  std::chrono::milliseconds greeting{30'000};  // Time that a client has for its first message.
  uint64_t memory_limit = 0;                   // Bytes; 0: what the machine or the control group has.
  std::shared_ptr<const Files> files;          // The files that clients may read; null: none.
  std::string python;  // Interpreter of the Python functions that clients may call; empty: clients may call none.
  std::string python_program;  // python_process.py of the package.
  // The address on which it waits for workers of other ranks (worker/collectives); empty: it does not wait.
  std::string peer_host;
  bool repeatable = false;  // Results must not depend on timing; a client asks for this.
};

}  // namespace torch_remote::worker
