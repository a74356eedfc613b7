#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "remote/capture/capture.h"

// Which runners execute the nodes of a capture's programs.
namespace torch_remote::tools {

struct NodeRunner {
  std::string runner;      // such as "ATen 2.13.0"; empty: the node did not run
  std::string declined;    // earlier runners in the list, and why each declined the node; may be empty
  bool in_kernel = false;  // one kernel executed the node's whole group
};

// By the program's number: the runner of each node. Programs without runs are missing.
using NodeRunners = std::map<uint32_t, std::vector<NodeRunner>>;

// Replays the capture, from its beginning, on a worker ("local", "unix://PATH"). Each program runs once more, with the
// parameters of its first run, while the worker records a profile. A local worker waits until its kernels are compiled.
// `program`: only this program; 0: all.
Status find_runners(remote::CaptureReader& capture, const std::string& worker, uint32_t program, NodeRunners* runners);

// For example "ATen 2.13.0; compiled kernels: it is being compiled".
std::string to_string(const NodeRunner& runner);

}  // namespace torch_remote::tools
