#pragma once

#include "worker/targets/cuda/device/nccl.h"

// For tests: NCCL in software, as a table of functions. Ranks are processes of one machine, which pass pieces on
// through a file that all have mapped; ops are done in the order of the stream, by the emulated driver's memory, and a
// rank that others wait for stays waited for until they abort. Sums are added up in the order of the ranks.
namespace torch_remote::worker::cuda::emulated {

// There is an EmulatedDriver while its functions are called. Calls are counted there: `EmulatedDriver::calls`.
// `refused`: the rank that is told that its GPU is another one's, too; -1: none.
nccl::Table nccl(int refused = -1);

}  // namespace torch_remote::worker::cuda::emulated
