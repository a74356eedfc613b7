#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "ir/math_modes.h"
#include "ir/status.h"
#include "tools/runs/device.h"

namespace torch_remote::tools {

// One run of one graph, with all of its data.
struct RunCase {
  ir::Graph graph;                     // before the passes
  std::optional<ir::Graph> optimized;  // the graph that a worker received, if known
  std::vector<int64_t> params;
  std::vector<Bytes> inputs;  // bytes of the input buffers, in the order of their indices
  ir::MathModes math_modes = 0;
};

// Writes a capture of this run alone: the inputs' bytes, the program, the run. Without an optimized graph, `graph` is
// sent. Overwrites the file.
Status save_case(const RunCase& run, const std::string& path);

}  // namespace torch_remote::tools
