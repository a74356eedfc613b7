#pragma once

#include <vector>

#include "worker/targets/target.h"

namespace torch_remote::worker {

// The targets of this worker. The first one is the default of --device.
std::vector<Target> all_targets();

// The worker's program: reads the command line, serves, and returns the exit status. Tests have targets of their own.
int run_worker(int argc, char** argv, const std::vector<Target>& targets = all_targets());

}  // namespace torch_remote::worker
