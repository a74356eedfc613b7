#pragma once

#include <string>

#include "ir/graph.h"

// The difference of two graphs, ops first: which op is the first that differs, and how. Numbers of views, buffers and
// symbols are only names: corresponding ones get the same name, so an additional op changes one line, and not all lines
// after it. Source lines are ignored.
namespace torch_remote::tools {

struct GraphDifference {
  bool same = true;
  std::string first;  // one line, such as "op 12 (aten::mul.Tensor, train.py:7 in forward) is only in a.txt"
  std::string diff;   // unified diff of the texts; the second one has the names of the first
};

// `name_a`, `name_b`: the graphs' names in messages.
GraphDifference diff_graphs(const ir::Graph& a, const ir::Graph& b, const std::string& name_a,
                            const std::string& name_b);

}  // namespace torch_remote::tools
