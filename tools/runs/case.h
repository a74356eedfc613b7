#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "ir/status.h"
#include "tools/runs/device.h"

namespace torch_remote::tools {

// One run of one graph, with everything that it needs.
struct RunCase {
  ir::Graph graph;                     // before the passes
  std::optional<ir::Graph> optimised;  // what a worker was sent for it, if that is known
  std::vector<int64_t> params;
  std::vector<Bytes> inputs;  // of the input buffers, in the order of their indices
};

// A capture of this run alone: the inputs' bytes, the program, the run. Where there is no optimised graph, `graph`
// stands for it. Overwrites the file.
Status save_case(const RunCase& run, const std::string& path);

}  // namespace torch_remote::tools
