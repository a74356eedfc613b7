#pragma once

#include "worker/server.h"

namespace torch_remote::worker {

// The worker's program: reads the command line, serves, and returns the exit status.
int run_worker(int argc, char** argv, DeviceOpener open_device = open_host_device);

}  // namespace torch_remote::worker
