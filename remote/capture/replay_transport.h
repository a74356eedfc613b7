#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ir/status.h"
#include "remote/transport/transport.h"

// A session that outlives its worker: what the client sends is written to disk, and when the worker is lost it is sent
// again, to another worker, from the last checkpoint on. The client notices nothing but the time.
//
// That the new worker comes to the same bits is up to the greeting: it asks the worker to choose nothing by what takes
// how long (Hello::repeatable). Another kind of worker (processor, number of cores, versions) is refused.
namespace torch_remote::remote {

struct ReplayOptions {
  std::string folder;                  // for the log
  uint64_t limit = uint64_t{1} << 30;  // bytes of messages since the last checkpoint
  // Another worker, when one is lost; called on a thread of the transport's, again and again for `patience` if it fails
  // while `go_on` says so.
  std::function<Status(const KeepWaiting& go_on, std::unique_ptr<Transport>* transport)> connect;
  std::chrono::seconds patience{60};
  std::chrono::seconds every{300};                    // a checkpoint is due after so long
  std::function<void(const std::string&)> tell = {};  // what happens, for people; on any thread
  std::function<void()> due = {};  // a checkpoint should be made; called while a message is sent, must not wait
};

// The client's end. Destroying it ends the restoring thread.
class ReplayTransport : public Transport {
 public:
  static Status open(std::unique_ptr<Transport> first, ReplayOptions options,
                     std::unique_ptr<ReplayTransport>* transport);

  // A checkpoint that the client has begun (remote/client/checkpoint.h): what each buffer held, and the end, from which
  // on the messages before it are forgotten; or it is given up. One thread at a time.
  virtual Status begin_checkpoint() = 0;
  virtual Status add_buffer(uint64_t buffer, std::span<const std::byte> bytes) = 0;
  virtual Status commit_checkpoint() = 0;
  virtual void abandon_checkpoint() = 0;
  // Whether one is due: much was sent since the last one, or what was sent cannot be repeated.
  virtual bool checkpoint_due() const = 0;
  // How many workers were replaced.
  virtual uint64_t restored() const = 0;
};

}  // namespace torch_remote::remote
