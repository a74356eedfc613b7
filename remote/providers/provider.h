#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "ir/status.h"
#include "remote/net/tls.h"
#include "remote/transport/transport.h"

// Who starts a worker, and where.
namespace torch_remote::remote {

// A running worker and the connection to it. Destroying it ends a worker that it started: destroy what uses the
// transport first, then the worker ends by itself.
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
  std::string python;     // interpreter of Python functions; empty: it calls none
};

// A child process over a socket pair. It ends when it sees the end of file there, so it dies with this process
// (PR_SET_PDEATHSIG would end it with the *thread* that started it). It is a process group of its own: Ctrl-C ends a
// wait, not the worker. Its transport's kLost says how the process ended. Errors name the file that is missing or not
// executable and say how to mend it. May be called while other threads run.
Status start_local_worker(const LocalWorkerOptions& options, std::unique_ptr<Worker>* worker);

// A worker on a thread of this process: the library that has it (lib/libtorch_remote_inproc.so of the package), and the
// plugin; `python` as of a local one. The thread ends when the transport is destroyed.
Status start_inproc_worker(const std::string& library, const std::string& plugin, const std::string& python,
                           std::unique_ptr<Worker>* worker);

// unix://path: a worker that listens already (`torch-remote-worker --listen unix://path`).
Status connect_unix_worker(const std::string& path, std::unique_ptr<Worker>* worker);

// tcp://HOST:PORT or tls://HOST:PORT: a worker that listens there. The environment has token and certificates
// (remote/net/dial.h). The session is resumed by itself when its connection breaks.
Status connect_network_worker(const std::string& url, const KeepWaiting& keep_waiting, std::unique_ptr<Worker>* worker);

// Where a worker is that somebody else has started.
struct Endpoint {
  std::string url;    // unix://PATH, tcp://HOST:PORT, tls://HOST:PORT, or one of those below
  std::string token;  // empty: the environment's
  TlsFiles tls;       // empty ones: the environment's
  // A connected stream socket: its owner is who connects. The worker at its other end shares memory ("socket:"), or
  // only bytes go to and fro ("channel:DESCRIPTION": another program carries them).
  int socket = -1;
};
Status connect_worker(const Endpoint& endpoint, const KeepWaiting& keep_waiting, std::unique_ptr<Worker>* worker);

// Where the parts of an installed package lie.
struct WorkerFiles {
  std::string worker;     // bin/torch-remote-worker
  std::string plugin;     // lib/libaten_plugin.so
  std::string inproc;     // lib/libtorch_remote_inproc.so
  std::string torch_lib;  // folder of libtorch_cpu.so; may be empty if it lies beside the package
  std::string python;     // interpreter of the functions that local workers call; empty: they call none
};

// Whether `start_worker` knows what this is.
bool is_worker_name(std::string_view name);

// A worker by the name that users have for it: "local", "inproc", "unix://path", "tcp://host:port" or
// "tls://host:port". `threads` is a local one's. What may take long asks `keep_waiting`, if it is not empty.
Status start_worker(const std::string& name, const WorkerFiles& files, int threads, const KeepWaiting& keep_waiting,
                    std::unique_ptr<Worker>* worker);

}  // namespace torch_remote::remote
