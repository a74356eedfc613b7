#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "remote/capture/capture.h"

// Finds which runners execute the nodes of a capture's programs.
namespace torch_remote::tools {

struct NodeRunner {
  std::string runner;      // "ATen 2.13.0"; empty: the node did not run
  std::string declined;    // runners that come before it, and why they did not take the node; may be empty
  bool in_kernel = false;  // one kernel executed the whole group that the node is in
};

// The runners of each program's nodes, by the program's number. A program without runs is left out.
using NodeRunners = std::map<uint32_t, std::vector<NodeRunner>>;

// Replays the capture, from its beginning, on a worker ("local", "unix://PATH"). Each program also runs with the
// parameters of its first run while the worker records who executes what. A local worker waits for kernels that it
// compiles. `program`: only this one; 0: all.
Status find_runners(remote::CaptureReader& capture, const std::string& worker, uint32_t program, NodeRunners* runners);

// "ATen 2.13.0; compiled kernels: it is being compiled".
std::string to_string(const NodeRunner& runner);

}  // namespace torch_remote::tools
