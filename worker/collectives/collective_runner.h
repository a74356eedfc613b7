#pragma once

#include <functional>
#include <memory>
#include <string>

#include "worker/collectives/device_collectives.h"
#include "worker/device/device.h"
#include "worker/runner/runner.h"

// The runner of collective ops. Programs name groups by numbers that the client gives them:
//
//   remote_c10d::listen(Tensor(a!) port, Tensor(b!) host, int group) -> ()
//       begins a group. `port`: i64[1]; `host`: u8[256], the address's host, the rest 0
//   remote_c10d::join(Tensor plan, int group, int rank, int size, int timeout) -> ()
//       connects it. `plan`: u8, lines of text: the secret in hexadecimal digits, then "HOST:PORT" of each rank that is
//       to be connected now, an empty line for the others. May be done again, with other ranks
//   remote_c10d::leave(Tensor unused, int group) -> ()
//   remote_c10d::all_reduce_(Tensor(a!) tensor, int group, int sequence, str reduction) -> (), and so on: kOps in the
//   source
//
// Ops go on beside the session (worker/collectives/lane.h), for at most the group's time-out (ms). `sequence` counts a
// group's collective ops: where one was left out because something before it had failed, the next one breaks the group
// and tells the others. Tensors are contiguous; on a device that is not this machine's memory all but messages that are
// sent is waited for. There `collectives` do what they can, where those of all ranks are there; else tensors are copied
// out and in.
namespace torch_remote::worker {

struct CollectiveOptions {
  Device* device = nullptr;
  // The device's own ones. May be null.
  std::shared_ptr<DeviceCollectives> collectives = nullptr;
  // Where it waits for other workers, a host that they reach it by; empty: it does not.
  std::string host;
  // Of the run that goes on.
  std::function<uint64_t()> sequence = [] { return 0; };
  // Whether the ops of this run are to end: its client is gone, or gave up. For any thread. May be null.
  std::function<bool(uint64_t sequence)> interrupted = {};
  // Called now and then while the session waits for an op. May be null.
  std::function<void()> look = {};
  // Called by any thread when an op that went on beside the session is done. May be null.
  std::function<void()> told = {};
};

std::unique_ptr<Runner> make_collective_runner(CollectiveOptions options);

}  // namespace torch_remote::worker
