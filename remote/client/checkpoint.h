#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "ir/status.h"
#include "remote/client/client.h"

// What all buffers of a session hold at one point of it, read while the session goes on: for who wants to begin there
// (remote/capture/replay_transport.h). One at a time. The clients are Client::connect's.
namespace torch_remote::remote {

struct CheckpointBuffer {
  uint64_t id = 0;
  uint64_t nbytes = 0;
};
using TakeBytes = std::function<Status(std::span<const std::byte>)>;

// From here on runs say all of their parameters once. *kept is false, and nothing is kept, where failures wait to be
// told. Waits.
Status begin_checkpoint(Client& client, const KeepWaiting& keep_waiting, bool* kept,
                        std::vector<CheckpointBuffer>* buffers);
// What a buffer held then. Waits. `take` sees the bytes in place, once.
Status read_checkpoint(Client& client, const CheckpointBuffer& buffer, const TakeBytes& take,
                       const KeepWaiting& keep_waiting);
// The worker forgets it. Waits.
Status drop_checkpoint(Client& client, const KeepWaiting& keep_waiting);

}  // namespace torch_remote::remote
