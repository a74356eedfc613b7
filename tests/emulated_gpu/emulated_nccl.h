#pragma once

#include "worker/targets/cuda/nccl/nccl.h"

// For tests: an emulated NCCL, as a table of functions. Ranks are processes of one machine, which exchange data piece
// by piece through a file that all of them map. Ops execute in stream order on the emulated driver's memory. A rank
// that others wait for blocks them until they abort. Sums are added in rank order.
namespace torch_remote::worker::cuda::emulated {

// An EmulatedDriver must exist while the functions are called. It counts the calls: `EmulatedDriver::calls`. `refused`
// is the rank that gets the error that another rank uses the same GPU; -1: none.
nccl::Table nccl(int refused = -1);

}  // namespace torch_remote::worker::cuda::emulated
