#pragma once

#include <cstddef>
#include <cstdint>

#include "tools/runs/case.h"

// Shorter lists of tensors.
namespace torch_remote::tools::reduce {

// How many tensors an op on lists works on, one by one (aten::_foreach_add_.List); 0 for other ops.
size_t list_length(const ir::Graph& graph, const ir::Node& node);

// The run without the operands [begin, end) of this node's lists, nor what it makes of them. False if a node, or who
// sees what survives, needs that.
bool without_operands(const RunCase& run, uint32_t node, size_t begin, size_t end, RunCase* changed);

}  // namespace torch_remote::tools::reduce
