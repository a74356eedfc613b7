#include "tools/viz/times.h"

#include <string_view>

#include "tools/common/input.h"

namespace torch_remote::tools {
namespace {

bool is_count(const Json& entry, const char* field) {
  return entry.contains(field) && entry[field].is_number_unsigned();
}

bool is_time(const Json& entry, const char* field) { return entry.contains(field) && entry[field].is_number(); }

}  // namespace

Status read_times(const std::string& path, uint32_t program, size_t nodes,
                  std::vector<std::optional<NodeTime>>* times) {
  Input input;
  if (Status status = read_input(path, &input); !status.ok()) return status;
  Json json;
  try {
    json = Json::parse(input.bytes);
  } catch (const Json::parse_error& error) {  // "[json.exception.parse_error.101] parse error at line 1, column 1: ..."
    const std::string_view what = error.what();
    return Status::invalid(path + ": not JSON: " + std::string(what.substr(what.find("] ") + 2)));
  }
  if (json.is_object() && json.contains("times")) json = Json(json["times"]);
  if (!json.is_array())
    return Status::invalid(path + ": not the JSON array of times that remote-replay --bench writes");
  times->assign(nodes, std::nullopt);
  size_t found = 0;
  for (const Json& entry : json) {
    const bool good = entry.is_object() && is_count(entry, "program") && is_count(entry, "node") &&
                      is_time(entry, "p50_us") && is_time(entry, "p99_us");
    if (!good) {
      return Status::invalid(path + ": " + dump(entry, -1).substr(0, 200) +
                             " is not a time: it needs program, node, p50_us and p99_us");
    }
    if (entry["program"].get<uint64_t>() != program) continue;
    const auto node = entry["node"].get<uint64_t>();
    if (node >= nodes) {
      return Status::invalid(path + ": it has a time of node " + std::to_string(node) + ", but the graph has " +
                             std::to_string(nodes) + " nodes; is it of another program?");
    }
    (*times)[node] = {entry["p50_us"].get<double>(), entry["p99_us"].get<double>()};
    ++found;
  }
  if (found != 0) return {};
  return Status::invalid(path + ": it has no times of program " + std::to_string(program) + "; choose with --program");
}

}  // namespace torch_remote::tools
