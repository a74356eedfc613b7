#pragma once

#include <string>
#include <vector>

#include "ir/graph.h"

namespace torch_remote::tools {

// What a parameter is for: where it is used first.
struct ParamUse {
  std::string what;        // "size 0 of %3", "argument 'alpha' of op 4 (aten::add.Tensor)"; "not used"
  bool is_double = false;  // its word is the bits of one
};

// One for each parameter of the graph.
std::vector<ParamUse> param_uses(const ir::Graph& graph);

// A parameter's word as that use means it.
std::string param_text(const ParamUse& use, int64_t word);

}  // namespace torch_remote::tools
