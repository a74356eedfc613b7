#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "ir/status.h"
#include "remote/client/client.h"

// Checkpoints: the contents of all buffers of a session at one point, which are read while the session continues. A
// replay can start from one (remote/capture/replay_transport.h). There is at most one at a time. `client` must come
// from Client::connect.
namespace torch_remote::remote {

struct CheckpointBuffer {
  uint64_t id = 0;
  uint64_t nbytes = 0;
};
using TakeBytes = std::function<Status(std::span<const std::byte>)>;

// Makes a checkpoint and sets *created and *buffers. The next run of each program then sends all of its parameters. If
// there are unreported failures, *created is false and there is no checkpoint. Waits.
Status begin_checkpoint(Client& client, const KeepWaiting& keep_waiting, bool* created,
                        std::vector<CheckpointBuffer>* buffers);
// Reads the contents that a buffer had at the checkpoint. `take` sees the bytes once, in place. Waits.
Status read_checkpoint(Client& client, const CheckpointBuffer& buffer, const TakeBytes& take,
                       const KeepWaiting& keep_waiting);
// Makes the worker drop the checkpoint. Waits.
Status drop_checkpoint(Client& client, const KeepWaiting& keep_waiting);

}  // namespace torch_remote::remote
