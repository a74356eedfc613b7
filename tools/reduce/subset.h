#pragma once

#include <vector>

#include "ir/status.h"
#include "tools/runs/case.h"

// Parts of a run.
namespace torch_remote::tools::reduce {

// The run with just the nodes for which `keep` is set. What they would have read from the others becomes an input, with
// the bytes that it had in the whole run (computed on `device`); what the others would have read from them outlives the
// run. Where kept and other nodes write one buffer in turns, the others' later writes are missing.
Status subset(Device& device, const RunCase& run, const std::vector<bool>& keep, RunCase* part);

// The nodes that what survives depends on.
std::vector<bool> needed_nodes(const ir::Graph& graph);

// The run with its unused symbols, buffers, views and lines left out, without memory plan and marks of passes.
RunCase compacted(const RunCase& run);

// Whether a worker would take it: the graph verifies, and its views lie in their buffers.
bool is_sound(const RunCase& run);

}  // namespace torch_remote::tools::reduce
