#pragma once

#include "tests/emulated_gpu/emulated_driver.h"
#include "worker/targets/cuda/probe.h"
#include "worker/targets/target.h"

namespace torch_remote::worker::cuda::emulated {

// The GPUs of this process, shared by all sessions. $TORCH_REMOTE_TEST_DELAYS is the seed of the delays.
// $TORCH_REMOTE_TEST_CHECKED=1 examines each memory access of kernels. $TORCH_REMOTE_TEST_OTHERS is a value of
// Options::peer_access in lower case. $TORCH_REMOTE_TEST_DRIVER is the driver's version (12040: CUDA 12.4).
// $TORCH_REMOTE_TEST_WITHOUT_POOLS=1 makes GPUs without memory pools.
EmulatedDriver& gpus();

// For tests: opens one GPU with only the runners of kernels and of the emulated libraries.
DeviceOpener device_opener(const std::string& id);
// Opens the first GPU.
Status open_device(remote::Transport& transport, const DeviceOptions& options,
                   std::function<tr_client_activity()> client_activity, OpenDevice* opened);

// Everything that --probe reports about the emulated GPUs.
ProbeSource probe_source();

// TORCH_REMOTE_TEST_CALLS names a file. On each SIGUSR1, the process writes the number of calls of each driver and
// library function to it, one per line. Must be called before any other thread starts.
void report_calls_on_signal();

}  // namespace torch_remote::worker::cuda::emulated
