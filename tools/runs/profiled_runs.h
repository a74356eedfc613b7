#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "remote/capture/capture.h"
#include "tools/runs/device.h"
#include "tools/runs/execute.h"

// Running one program of a capture again and again while the worker records a profile.
namespace torch_remote::tools {

struct ProfiledRuns {
  // One node, or one group that ran as one kernel.
  struct Row {
    std::vector<uint64_t> ns;  // of each run in which the worker timed it; empty: never
    std::string runner;        // who executed it in the last of them: "ATen 2.13.0"
    std::string declined;      // runners that come before that one, and why they did not take it; may be empty
  };
  std::vector<Row> rows;       // of the nodes, then of the groups
  std::vector<uint64_t> runs;  // ns of each run's message
};

// Runs `run.program` `rounds` times with the parameters of `run`, after two runs that warm up. The inputs stay as they
// are. If *error is set, the worker reported an error, and *profiled is incomplete.
Status profile_runs(Device& device, const remote::RunEvent& run, const Inputs& inputs, int rounds,
                    ProfiledRuns* profiled, WorkerError* error);

}  // namespace torch_remote::tools
