#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "ir/graph.h"

// Random inputs for property tests. All of them depend only on the generator's state, so that a seed identifies a
// failure.
namespace torch_remote::ir::testing {

using Rng = std::mt19937_64;

struct RandomGraphOptions {
  uint32_t max_nodes = 16;
  bool plan = true;     // some graphs have a memory plan
  bool dynamic = true;  // some end with dynamic results
};

// Returns a graph that verifies. It uses all ops of the table and a few opaque ones, and every construct that a graph
// can have. Its sizes and strides have no meaning.
Graph random_graph(Rng& rng, const RandomGraphOptions& options = {});

// Opaque ops with all kinds of arguments and results. The first call registers them.
const std::vector<Opcode>& opaque_ops();

// A recorded trace with the same variety, written with Trace's functions, and the graph that it must become.
struct RandomTrace {
  Trace trace;
  Graph graph;
};
RandomTrace random_trace(Rng& rng, uint32_t max_records = 16);

}  // namespace torch_remote::ir::testing
