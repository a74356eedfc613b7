#pragma once

#include <functional>
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

struct CollectiveOptions {
  Device* device = nullptr;
  // Collective ops of the device itself. May be null.
  std::shared_ptr<DeviceCollectives> collectives = nullptr;
  // The host name or address at which other workers reach this one; empty: this worker does not let others connect.
  std::string host;
  // Returns the sequence of the current run's message (not that of an op).
  std::function<uint64_t()> sequence = [] { return 0; };
  // Whether the ops of this run must end, because its client is gone or gave up. Called on any thread. May be null.
  std::function<bool(uint64_t sequence)> interrupted = {};
  // Called now and then while the session waits for an op. May be null.
  std::function<void()> look = {};
  // Called on any thread when an op in the background is done. May be null.
  std::function<void()> on_done = {};
};

std::unique_ptr<Runner> make_collective_runner(CollectiveOptions options);

}  // namespace torch_remote::worker
