#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "ir/graph.h"

namespace torch_remote::worker {

// A view that a step writes, and that has memory after the step.
struct WrittenView {
  uint32_t node = 0;    // The first node of the isolated graph that writes it.
  uint32_t result = 0;  // Its index among the views that this node writes.
  uint32_t view = 0;    // View of the isolated graph.
  uint32_t buffer = 0;  // Buffer of the program.
};

// Some nodes of a program as a program of their own.
struct IsolatedStep {
  ir::Graph graph;
  std::vector<int64_t> params;
  std::vector<uint32_t> inputs;   // Buffers of the program, in the order of the graph's input buffers.
  std::vector<uint32_t> created;  // Buffers of the program, in the order of the graph's fresh buffers that survive.
  std::vector<uint32_t> updated;  // Indices into `inputs` of those that the nodes write.
  std::vector<WrittenView> written;
  double reference_ns = 0;  // An estimate of how long a simple implementation takes.
};

// Isolates nodes [first, last), which one call of a runner executes. `values` are those of the graph's symbols. A
// buffer that the nodes create and that other nodes can read survives; every other buffer that they touch is an input.
// Returns nothing if no view is written that can be compared: results of unknown size have no memory before the run.
std::optional<IsolatedStep> isolate_step(const ir::Graph& graph, std::span<const int64_t> values, uint32_t first,
                                         uint32_t last);

}  // namespace torch_remote::worker
