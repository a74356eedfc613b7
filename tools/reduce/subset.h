#pragma once

#include <vector>

#include "ir/status.h"
#include "tools/runs/case.h"

// Extracts parts of a run.
namespace torch_remote::tools::reduce {

// The run with only the nodes for which `keep` is set. Results of dropped nodes that a kept one reads become inputs,
// with their bytes in the whole run (computed on `device`). Results of kept nodes that a dropped one reads survive the
// run. If kept and dropped nodes write the same buffer alternately, the dropped nodes' later writes are missing.
Status subset(Device& device, const RunCase& run, const std::vector<bool>& keep, RunCase* part);

// The nodes that the surviving buffers depend on.
std::vector<bool> needed_nodes(const ir::Graph& graph);

// The run without unused symbols, buffers, views and source lines, without memory plan and groups.
RunCase compacted(const RunCase& run);

// Whether a worker would accept the run: the graph verifies, and its views fit into their buffers.
bool is_sound(const RunCase& run);

}  // namespace torch_remote::tools::reduce
