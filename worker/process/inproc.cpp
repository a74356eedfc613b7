#include <cstdio>
#include <filesystem>

#include "remote/transport/transport.h"
#include "worker/runner/plugin_loader.h"
#include "worker/server/files.h"
#include "worker/server/server.h"
#include "worker/targets/cpu/cpu_target.h"

// The worker inside the client's process (TORCH_REMOTE_WORKER=inproc): a library that the client opens. `transport` is
// a remote::Transport of the same build; the caller owns it. `python` is the interpreter of functions, or empty. Runs
// the session on the calling thread. Returns 0 when the client is gone, or 1 with the reason on stderr.
extern "C" __attribute__((visibility("default"))) int torch_remote_inproc_serve(void* transport, const char* plugin,
                                                                                const char* python, int threads) {
  using namespace torch_remote;
  worker::ServerOptions options;
  options.open_device = worker::open_cpu;
  options.inproc = options.trusted = true;
  options.threads = threads;
  options.peer_host = "127.0.0.1";
  options.python = python;
  options.python_program = std::filesystem::path(plugin).parent_path().parent_path() / "lib/python_process.py";
  (void)worker::Files::in("/", &options.files);  // The files are the client's own.
  options.unavailable = worker::load_plugin(plugin, &options.runner);
  const Status status = worker::serve(*static_cast<remote::Transport*>(transport), options);
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s\n", status.message().c_str());
  return 1;
}
