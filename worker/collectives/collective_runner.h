#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "worker/collectives/device_collectives.h"
#include "worker/device/device.h"
#include "worker/runner/runner.h"

// The runner of collective ops. Programs refer to groups by numbers that the client assigns:
//
//   remote_c10d::listen(Tensor(a!) port, Tensor(b!) host, int group) -> ()
//       begins a group, and writes the address at which it waits for other ranks to `port`: i64[1] and `host`: u8[256],
//       padded with zeros
//   remote_c10d::join(Tensor plan, int group, int rank, int size, int timeout) -> ()
//       connects the group. `plan`: u8, lines of text: the secret in hexadecimal digits, then "HOST:PORT" of each rank
//       to connect now; an empty line for other ranks. join may be called again, with other ranks
//   remote_c10d::leave(Tensor unused, int group) -> ()
//   remote_c10d::all_reduce_(Tensor(a!) tensor, int group, int sequence, str reduction) -> (), and so on: see kOps in
//   collective_calls.cpp
//
// Ops run in the background of the session (worker/collectives/op_queue.h), for at most the group's timeout (ms).
// `sequence` counts a group's collective ops. If one was left out because an earlier failure prevented it, the next one
// breaks the group and reports that to the other ranks.
// Tensors are contiguous. On a device that is not this machine's memory, the session waits for all ops except sends. If
// the devices of all ranks have DeviceCollectives, they execute the ops that these support. Otherwise tensors are
// copied to the host and back.
namespace torch_remote::worker {

// The session's client, as far as collective ops need it.
class CollectiveClient {
 public:
  virtual ~CollectiveClient() = default;
  // Sequence number of the message that the session is handling. For the session's thread.
  virtual uint64_t current_message() const = 0;
  // Whether the ops of this message must end, because the client is gone or gave up. Thread safe.
  virtual bool is_over(uint64_t sequence) = 0;
  // Receives pending messages. The session's thread calls it now and then while it waits for an op.
  virtual void receive_early() = 0;
  // An op in the background is done. Thread safe.
  virtual void wake() = 0;
};

struct CollectiveOptions {
  Device* device = nullptr;
  // Collective ops of the device itself. May be null.
  std::shared_ptr<DeviceCollectives> collectives = nullptr;
  // The host name or address at which other workers reach this one; empty: this worker does not let others connect.
  std::string host;
  CollectiveClient* client = nullptr;
};

std::unique_ptr<Runner> make_collective_runner(CollectiveOptions options);

}  // namespace torch_remote::worker
