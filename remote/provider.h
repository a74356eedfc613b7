#pragma once

#include <memory>
#include <string>

#include "ir/status.h"
#include "remote/transport.h"

// Who starts a worker, and where.
namespace torch_remote::remote {

// A running worker and the connection to it. Destroying it ends a worker that it started.
class Worker {
 public:
  virtual ~Worker() = default;
  virtual std::unique_ptr<Transport> take_transport() = 0;  // once
  virtual int process() const = 0;                          // pid of a local worker, -1 elsewhere
  virtual void abandon() = 0;                               // after fork: leave it alone
};

struct LocalWorkerOptions {
  std::string binary;     // bin/torch-remote-worker of the package
  std::string plugin;     // lib/libaten_plugin.so
  std::string torch_lib;  // folder of libtorch_cpu.so; the worker's $TORCH_REMOTE_TORCH_LIB
  int threads = 0;        // 0: torch's default
};

// A child process over a socket pair. It dies with this process (PR_SET_PDEATHSIG and end of file). Errors name the file
// that is missing or not executable and say how to mend it.
Status start_local_worker(const LocalWorkerOptions& options, std::unique_ptr<Worker>* worker);

// unix://path: a worker that listens already (`torch-remote-worker --listen unix://path`).
Status connect_unix_worker(const std::string& path, std::unique_ptr<Worker>* worker);

}  // namespace torch_remote::remote
