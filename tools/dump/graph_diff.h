#pragma once

#include <string>

#include "ir/graph.h"

// The difference of two graphs, ops first: which op is the first that differs, and how. Numbers of views, buffers and
// symbols are names; what corresponds in both graphs gets one name, so that one op more is one line and not all that
// follow. Source lines count as nothing.
namespace torch_remote::tools {

struct GraphDifference {
  bool same = true;
  std::string first;  // one line: "op 12 (aten::mul.Tensor, train.py:7 in forward) is only in a.txt"
  std::string diff;   // unified diff of the texts, the second with the names of the first
};

// `name_a`, `name_b`: of the two in messages.
GraphDifference diff_graphs(const ir::Graph& a, const ir::Graph& b, const std::string& name_a,
                            const std::string& name_b);

}  // namespace torch_remote::tools
