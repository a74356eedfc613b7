#pragma once

#include "tests/emulated_gpu/emulated_driver.h"
#include "worker/targets/cuda/probe.h"
#include "worker/targets/target.h"

namespace torch_remote::worker::cuda::emulated {

// The GPUs of the process, for all its sessions. $TORCH_REMOTE_TEST_DELAYS: the seed of their delays;
// $TORCH_REMOTE_TEST_CHECKED=1: kernels are looked at access by access. $TORCH_REMOTE_TEST_OTHERS: Options::others, in
// small letters.
EmulatedDriver& gpus();

// For tests: one of them, and on it the runners of kernels and of libraries in software, and nobody else.
DeviceOpener device_opener(int ordinal);
// The first one.
Status open_device(remote::Transport& transport, const DeviceOptions& options,
                   std::function<tr_client()> client_activity, OpenDevice* opened);

// All of it, for --probe.
ProbeSource probe_source();

// With TORCH_REMOTE_TEST_CALLS, the name of a file: writes there how often each of the driver's and libraries'
// functions was called, a line each, whenever the process gets SIGUSR1. Before any other thread.
void tell_calls();

}  // namespace torch_remote::worker::cuda::emulated
