#pragma once

#include <string>
#include <unordered_map>

#include "ir/graph.h"

namespace torch_remote::tools {

// What a parameter is used for: described by its first use.
struct ParamUse {
  std::string what;        // "size 0 of %3", "argument 'alpha' of op 4 (aten::add.Tensor)"
  bool is_double = false;  // its word is the bits of one
};

// Of each parameter that the graph uses.
using ParamUses = std::unordered_map<ir::Sym, ParamUse>;
ParamUses param_uses(const ir::Graph& graph);

// A parameter's word as a number of the kind that its first use takes.
std::string param_text(const ParamUse& use, int64_t word);

}  // namespace torch_remote::tools
