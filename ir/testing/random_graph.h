#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "ir/graph.h"

// Random inputs for property tests. Everything is a function of the generator's state, so a failure is named by a seed.
namespace torch_remote::ir::testing {

using Rng = std::mt19937_64;

struct RandomGraphOptions {
  uint32_t max_nodes = 16;
  bool plan = true;     // some graphs have a memory plan
  bool dynamic = true;  // some end with dynamic results
};

// A graph that verifies, over all ops of the table and a few opaque ones, with every construct that a graph can have.
// Its sizes and strides mean nothing.
Graph random_graph(Rng& rng, const RandomGraphOptions& options = {});

// Opaque ops with all kinds of arguments and results, registered at the first call.
const std::vector<Opcode>& opaque_ops();

// A recorded trace with the same variety, written with Trace's own functions, and the graph that it is.
struct RandomTrace {
  Trace trace;
  Graph graph;
};
RandomTrace random_trace(Rng& rng, uint32_t max_records = 16);

}  // namespace torch_remote::ir::testing
