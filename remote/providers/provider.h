#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "ir/status.h"
#include "remote/net/tls.h"
#include "remote/transport/transport.h"

// Functions that start workers and connect to them.
namespace torch_remote::remote {

// A running worker and the connection to it. If this object started the worker, the destructor waits until the worker
// has ended, and kills it if that takes too long. The worker ends when its connection does, so destroy the users of the
// transport first.
class WorkerHandle {
 public:
  virtual ~WorkerHandle() = default;
  virtual std::unique_ptr<Transport> take_transport() = 0;  // may be called once
  virtual int process() const = 0;                          // pid of a local worker, -1 for others
  virtual void abandon() = 0;                               // for a forked child: leaves the worker alone
};

struct LocalWorkerOptions {
  std::string binary;     // bin/torch-remote-worker of the package
  std::string plugin;     // libaten_plugin.so
  std::string torch_lib;  // folder of libtorch_cpu.so; the worker's $TORCH_REMOTE_TORCH_LIB
  int threads = 0;        // 0: the default of torch
  std::string python;     // the interpreter that executes Python functions; empty: the worker calls none
};

// Starts a child process that is connected by a socketpair. The worker ends at end of file on its socket, so it ends
// with this process. (PR_SET_PDEATHSIG would end it with the *thread* that started it.) It is a process group of its
// own, so that Ctrl-C interrupts a wait but not the worker. If the transport returns kLost, the message says how the
// process ended. Errors name the file that is missing or not executable, and the fix. Other threads may run during the
// call.
Status start_local_worker(const LocalWorkerOptions& options, std::unique_ptr<WorkerHandle>* worker);

// Runs a worker on a thread of this process. `library` has its code (lib/libtorch_remote_inproc.so of the package).
// `python` is as in LocalWorkerOptions. The thread ends when the transport is destroyed.
Status start_inproc_worker(const std::string& library, const std::string& plugin, const std::string& python,
                           std::unique_ptr<WorkerHandle>* worker);

// Connects to a worker that listens at unix://path (`torch-remote-worker --listen unix://path`).
Status connect_unix_worker(const std::string& path, std::unique_ptr<WorkerHandle>* worker);

// Connects to a worker that listens at tcp://HOST:PORT or tls://HOST:PORT. The environment has the token and
// certificates (remote/net/dial.h). If the connection breaks, the session is resumed automatically.
Status connect_network_worker(const std::string& url, const KeepWaiting& keep_waiting,
                              std::unique_ptr<WorkerHandle>* worker);

// The address of a worker that somebody else started.
struct Endpoint {
  // unix://PATH, tcp://HOST:PORT, tls://HOST:PORT; with `socket`, "socket:" or "channel:DESCRIPTION"
  std::string url;
  std::string token;  // empty: use the environment's
  TlsFiles tls;       // empty fields: use the environment's
  // A connected stream socket, which connect_worker takes over. With the URL "socket:" the worker at its other end
  // shares memory. With "channel:DESCRIPTION" another program forwards the bytes, so there is no shared memory.
  int socket = -1;
};
Status connect_worker(const Endpoint& endpoint, const KeepWaiting& keep_waiting, std::unique_ptr<WorkerHandle>* worker);

// The files of an installed package.
struct WorkerFiles {
  std::string worker;     // bin/torch-remote-worker
  std::string plugin;     // libaten_plugin.so
  std::string inproc;     // lib/libtorch_remote_inproc.so
  std::string torch_lib;  // folder of libtorch_cpu.so; may be empty if that is next to the package
  std::string python;     // the interpreter that executes Python functions for local workers; empty: they call none
};

// Whether start_worker accepts this name.
bool is_worker_name(std::string_view name);

// Starts or connects to the worker that users call "local", "inproc", "unix://path", "tcp://host:port" or
// "tls://host:port". `threads` is for a local worker. Operations that may take long stop when `keep_waiting`, if not
// empty, returns false.
Status start_worker(const std::string& name, const WorkerFiles& files, int threads, const KeepWaiting& keep_waiting,
                    std::unique_ptr<WorkerHandle>* worker);

}  // namespace torch_remote::remote
