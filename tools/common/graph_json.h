#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "ir/graph.h"

// A graph as JSON. The schema is described in docs/tools.md; `kGraphSchema` goes up when the meaning of a field
// changes, not when one is added.
namespace torch_remote::tools {

using Json = nlohmann::ordered_json;

inline constexpr const char* kGraphSchema = "torch-remote.graph/1";

Json graph_json(const ir::Graph& graph);

// Text of it, with a line break at the end. Bytes that are no UTF-8 (file names, hostile input) are replaced.
std::string dump(const Json& json, int indent);

}  // namespace torch_remote::tools
