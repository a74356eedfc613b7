#pragma once

#include <cstdint>
#include <vector>

#include "ir/graph.h"

// Estimates the cost of ops from the sizes of their operands. The estimate can distinguish microseconds from
// milliseconds. Its unit is one multiply-add of a matmul.
namespace torch_remote::ir {

// Typical throughput of one 2025 server core.
inline constexpr double kWorkPerMicrosecond = (1 << 20) / 20.0;
// Cost of one element of any op other than a matmul.
inline constexpr double kWorkPerElement = 16;

// Estimates the cost of each node of the graph. `symbols` holds the values of its symbols (ir::evaluate).
void estimate_work(const Graph& graph, const int64_t* symbols, std::vector<double>* work);

}  // namespace torch_remote::ir
