#pragma once

#include <functional>

#include "worker/process/cuda_host.h"
#include "worker/server/server.h"
#include "worker/targets/cuda/probe.h"

namespace torch_remote::worker {

// The parts of a worker that tests replace.
struct WorkerParts {
  DeviceOpener open_device = open_host_device;                               // Without --device cuda:N.
  std::function<DeviceOpener(int ordinal)> gpu_opener = cuda_device_opener;  // With --device cuda:N.
  cuda::ProbeSource probed = cuda::nvidia();                                 // What --probe examines.
};

// The worker's program: reads the command line, serves, and returns the exit status.
int run_worker(int argc, char** argv, const WorkerParts& parts = {});

}  // namespace torch_remote::worker
