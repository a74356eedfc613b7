#pragma once

#include <cstdint>
#include <vector>

#include "ir/graph.h"

// What ops cost, as far as the sizes of their operands tell: good enough to tell an op of microseconds from one of
// milliseconds. In multiply-adds of a matmul.
namespace torch_remote::ir {

// Of one core of a machine of today.
inline constexpr double kWorkPerMicrosecond = (1 << 20) / 20.0;
// What an element of anything but a matmul is worth.
inline constexpr double kWorkPerElement = 16;

// What each node of the graph is worth. `symbols` are the values of its symbols (ir::evaluate).
void estimate_work(const Graph& graph, const int64_t* symbols, std::vector<double>* work);

}  // namespace torch_remote::ir
