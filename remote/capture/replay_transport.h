#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ir/status.h"
#include "remote/transport/transport.h"

// A session that survives its worker. The client's messages are written to disk. When the worker is lost, they are sent
// to another worker, from the last checkpoint on. The client only notices the delay.
//
// To get the same bits from every worker, the hello (Hello::deterministic) requests that no worker chooses algorithms
// by timing. A different kind of worker (processor, number of cores, versions) is refused.
namespace torch_remote::remote {

struct ReplayOptions {
  std::string folder;                  // for the log
  uint64_t limit = uint64_t{1} << 30;  // limit on bytes of messages since the last checkpoint
  // Connects to another worker when one is lost. Called on a thread of the transport. If it fails, it is called again
  // for up to `retry_time`; it should stop when `go_on` returns false.
  std::function<Status(const KeepWaiting& go_on, std::unique_ptr<Transport>* transport)> connect;
  std::chrono::seconds retry_time{60};
  std::chrono::seconds every{300};                   // a checkpoint is due after this time
  std::function<void(const std::string&)> log = {};  // receives messages for the user; called on any thread
  std::function<void()> on_due = {};                 // asks for a checkpoint; called during a send, so it must not wait
};

// The client's end. The destructor ends the restoring thread.
class ReplayTransport : public Transport {
 public:
  static Status open(std::unique_ptr<Transport> first, ReplayOptions options,
                     std::unique_ptr<ReplayTransport>* transport);

  // A checkpoint that the client has begun (remote/client/checkpoint.h): begin it, add each buffer, then commit or
  // abandon it. A commit forgets the messages before it. One thread at a time.
  virtual Status begin_checkpoint() = 0;
  virtual Status add_buffer(uint64_t buffer, std::span<const std::byte> bytes) = 0;
  virtual Status commit_checkpoint() = 0;
  virtual void abandon_checkpoint() = 0;
  // Whether a checkpoint is due: since the last one more than half of ReplayOptions::limit was sent, or
  // ReplayOptions::every has passed; or the log is unusable.
  virtual bool checkpoint_due() const = 0;
  // Number of workers that were replaced.
  virtual uint64_t restored() const = 0;
};

}  // namespace torch_remote::remote
