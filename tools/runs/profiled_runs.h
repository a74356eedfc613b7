#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "remote/capture/capture.h"
#include "tools/runs/device.h"
#include "tools/runs/execute.h"

// Runs one program of a capture repeatedly while the worker records a profile.
namespace torch_remote::tools {

struct ProfiledRuns {
  // One row per node, then one per group that ran as one kernel.
  struct Row {
    std::vector<uint64_t> ns;  // one time per run in which the worker timed it; empty: never
    std::string runner;        // the runner that executed it in the last such run: "ATen 2.13.0"
    std::string declined;      // earlier runners in the list, and why each declined it; may be empty
  };
  std::vector<Row> rows;
  std::vector<uint64_t> runs;  // total time of each run, in ns
};

// Runs `run.program` `rounds` times with the parameters of `run`, after two warm-up runs. The inputs do not change.
// `error`: an error that the worker reported; *profiled is then incomplete.
Status profile_runs(Device& device, const remote::RunEvent& run, const Inputs& inputs, int rounds,
                    ProfiledRuns* profiled, WorkerError* error);

}  // namespace torch_remote::tools
