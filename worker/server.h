#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "ir/status.h"
#include "remote/transport/transport.h"
#include "worker/executor.h"

// One session: receives a client's messages, has them done in order, answers.
namespace torch_remote::worker {

struct ServerOptions {
  const tr_executor_api* executor = nullptr;
  Status unavailable;    // not ok: there is no executor; clients are refused with this
  int threads = 0;       // of the executor; 0: its default
  bool inproc = false;   // the process is the client's own
  bool trusted = false;  // the client started this process, or is it: its uploads are used where they lie
  std::chrono::milliseconds greeting{30'000};  // what a client has for its first message
  uint64_t memory_limit = 0;                   // bytes; 0: what the machine or the control group has
};

// Runs on the calling thread until the client says goodbye or is gone (ok), or something is wrong with the connection
// or the messages (that error; the session is over). Everything the client had is freed before it returns.
Status serve(remote::Transport& transport, const ServerOptions& options);

}  // namespace torch_remote::worker
