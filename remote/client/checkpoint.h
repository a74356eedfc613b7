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

// Makes a checkpoint; later runs send all of their parameters once. If there are unreported failures, *kept is false
// and no checkpoint is made. Waits.
Status begin_checkpoint(Client& client, const KeepWaiting& keep_waiting, bool* kept,
                        std::vector<CheckpointBuffer>* buffers);
// Reads a buffer's contents in the checkpoint. `take` sees the bytes once, in place. Waits.
Status read_checkpoint(Client& client, const CheckpointBuffer& buffer, const TakeBytes& take,
                       const KeepWaiting& keep_waiting);
// Makes the worker drop the checkpoint. Waits.
Status drop_checkpoint(Client& client, const KeepWaiting& keep_waiting);

}  // namespace torch_remote::remote
