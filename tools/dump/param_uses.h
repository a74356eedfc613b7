#pragma once

#include <string>
#include <unordered_map>

#include "ir/graph.h"

namespace torch_remote::tools {

// The first use of a parameter.
struct ParamUse {
  std::string what;        // such as "size 0 of %3" or "argument 'alpha' of op 4 (aten::add.Tensor)"
  bool is_double = false;  // the parameter's word is the bits of a double
};

// The uses of all parameters that the graph uses.
using ParamUses = std::unordered_map<ir::Sym, ParamUse>;
ParamUses param_uses(const ir::Graph& graph);

// A parameter's word as text, as an integer or a real number, depending on its first use.
std::string param_text(const ParamUse& use, int64_t word);

}  // namespace torch_remote::tools
