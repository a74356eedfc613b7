#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "ir/graph.h"

// A graph as JSON. docs/tools.md describes the schema. The version in `kGraphSchema` increases when the meaning of a
// field changes, not when a field is added.
namespace torch_remote::tools {

using Json = nlohmann::ordered_json;

inline constexpr const char* kGraphSchema = "torch-remote.graph/2";

Json graph_json(const ir::Graph& graph);

// The JSON as text, with a final newline. Bytes that are not UTF-8 (file names, hostile input) are replaced.
std::string dump(const Json& json, int indent);

}  // namespace torch_remote::tools
