#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "ir/status.h"
#include "remote/transport/transport.h"

namespace torch_remote::remote {

class Channel;

struct CheckpointBuffer {
  uint64_t id = 0;
  uint64_t nbytes = 0;
};
using TakeBytes = std::function<Status(std::span<const std::byte>)>;

// The contents of all buffers of a session at one point, which are read while the session continues. A replay can start
// from them (remote/capture/replay_transport.h). There is at most one checkpoint at a time. Thread safe.
class Checkpoint {
 public:
  explicit Checkpoint(Channel& channel) : channel_(channel) {}

  // Makes a checkpoint and sets *created and *buffers. The next run of each program then sends all of its parameters.
  // If there are unreported failures, *created is false and there is no checkpoint. Waits.
  Status begin(const KeepWaiting& keep_waiting, bool* created, std::vector<CheckpointBuffer>* buffers);
  // Reads the contents that a buffer had at the checkpoint. `take` sees the bytes once, in place. Waits.
  Status read(const CheckpointBuffer& buffer, const TakeBytes& take, const KeepWaiting& keep_waiting);
  // Makes the worker drop the checkpoint. Waits.
  Status drop(const KeepWaiting& keep_waiting);

 private:
  Channel& channel_;
};

}  // namespace torch_remote::remote
