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

// What a session runs on, and what it may do.
namespace torch_remote::worker {

struct ServerOptions;

// What a session runs on: a device, and who does nodes there, in the order of preference.
struct OpenDevice {
  std::unique_ptr<Device> device;
  std::shared_ptr<DeviceCollectives> collectives;  // null: it has none
  Runners runners;
  // Of the runners that do groups; no targets: none does.
  std::vector<std::string> targets;
  uint32_t group_kinds = 0;
  uint64_t dtypes = 0;
};

// `client_activity` outlives what is opened.
using DeviceOpener = std::function<Status(remote::Transport& transport, const ServerOptions& options,
                                          std::function<tr_client()> client_activity, OpenDevice* opened)>;

// This machine's memory, the runner in the plugin, and before it, if the options name a library that compiles, that of
// compiled kernels.
Status open_host_device(remote::Transport& transport, const ServerOptions& options,
                        std::function<tr_client()> client_activity, OpenDevice* opened);

struct ServerOptions {
  DeviceOpener open_device = open_host_device;
  const tr_runner_api* runner = nullptr;  // in the plugin
  Status unavailable;                     // not ok: there is no runner; clients are refused with this
  std::string codegen;                    // path of the library that compiles kernels; empty: none are compiled
  std::string plugin;                     // path of the plugin, for who opens it when it is needed; empty: nobody does
  int threads = 0;                        // of the runner; 0: its default
  bool inproc = false;                    // the process is the client's own
  bool trusted = false;  // the client started this process, or is it: its uploads are used where they lie
  std::chrono::milliseconds greeting{30'000};  // what a client has for its first message
  uint64_t memory_limit = 0;                   // bytes; 0: what the machine or the control group has
  std::shared_ptr<const Files> files;          // that clients may have read; null: none
  std::string python;          // interpreter of the Python functions that clients may call; empty: they may call none
  std::string python_program;  // python_process.py of the package
  std::string peer_host;       // where it waits for workers of other ranks (worker/collectives); empty: it does not
  bool repeatable = false;     // what runs compute must not depend on what takes how long; a client asks for it
};

}  // namespace torch_remote::worker
