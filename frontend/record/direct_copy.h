#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <string>
#include <vector>

// Copies between devices that go from worker to worker (worker/collectives/direct_copies.h), as an op of each of the
// two. Any thread; with no lock held.
//
// Where a wait raises that a copy failed, the devices that it may have come from are waited for, too: what they say
// becomes part of the error, and counts as known. After a failure, and after torch.remote.cancel(), the next copy
// connects the two workers anew.
namespace torch_remote::frontend {

// Has all elements of `from` sent to `to`, on another device: a new tensor of the same sizes and dtype; both are
// contiguous. Waits for no worker, but for the first copy between two workers, which connects them. False: nothing was
// done, and the bytes have to go through this process; copy_paths() says why. Throws what recording throws.
bool copy_directly(const at::Tensor& to, const at::Tensor& from);

// How copies from one device to another went since start or reset_copy_paths().
struct CopyPath {
  c10::DeviceIndex from = 0, to = 0;
  uint64_t direct = 0;
  uint64_t relayed = 0;  // through this process
  std::string why;       // the last one that was relayed
  std::string way;       // of the last direct one: "from GPU to GPU", "over the network", "over the network, as ..."
};
std::vector<CopyPath> copy_paths();
void reset_copy_paths();

}  // namespace torch_remote::frontend
