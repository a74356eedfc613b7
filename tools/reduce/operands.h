#pragma once

#include <cstddef>
#include <cstdint>

#include "tools/runs/case.h"

// Removes operands from ops on lists of tensors.
namespace torch_remote::tools::reduce {

// The list length of an op that works on the tensors of lists one by one (aten::_foreach_add_.List); 0 for other ops.
size_t list_length(const ir::Graph& graph, const ir::Node& node);

// The run without the operands [begin, end) of this node's lists and their results. Returns false if a node needs these
// results, or if they survive.
bool without_operands(const RunCase& run, uint32_t node, size_t begin, size_t end, RunCase* changed);

}  // namespace torch_remote::tools::reduce
