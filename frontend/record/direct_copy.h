#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <string>
#include <vector>

// Copies between devices that go directly from worker to worker (worker/collectives/direct_copies.h). Each copy is one
// op on each of the two devices. Call these functions from any thread, with no lock held.
// If a wait for a device finds a failed copy, it also waits for all devices that have copied to this device directly.
// Their failures become part of the error that it raises, and count as reported. After a failure, and after
// torch.remote.cancel(), the next copy connects the two workers again.
namespace torch_remote::frontend {

// Copies all elements of `from` to `to`, a new tensor on another device with the same sizes and dtype. Both are
// contiguous. Waits for a worker only at the first copy between two workers, which connects them. Returns false if
// nothing was recorded and the bytes have to go through this process; copy_paths() then has the reason. Throws what
// recording throws.
bool copy_directly(const at::Tensor& to, const at::Tensor& from);

// How the copies from one device to another went since the start or reset_copy_paths().
struct CopyPath {
  c10::DeviceIndex from = 0, to = 0;
  uint64_t direct = 0;
  uint64_t relayed = 0;  // number of copies through this process
  std::string why;       // reason of the last relayed copy
  // transport of the last direct copy: "from GPU to GPU", "over the network", "over the network, as ..."
  std::string transport;
};
std::vector<CopyPath> copy_paths();
void reset_copy_paths();

}  // namespace torch_remote::frontend
