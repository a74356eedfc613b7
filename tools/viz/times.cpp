#include "tools/viz/times.h"

#include <string_view>

#include "tools/common/input.h"

namespace torch_remote::tools {
namespace {

bool is_count(const Json& entry, const char* field) {
  return entry.contains(field) && entry[field].is_number_unsigned();
}

bool is_time(const Json& entry, const char* field) { return entry.contains(field) && entry[field].is_number(); }

bool is_program(const Json& entry) {
  return entry.is_object() && is_count(entry, "program") && entry["program"].get<uint64_t>() <= UINT32_MAX;
}

}  // namespace

Status Times::read(const std::string& path, Times* times) {
  Input input;
  if (Status status = read_input(path, &input); !status.ok()) return status;
  Json json;
  try {
    json = Json::parse(input.bytes);
  } catch (const Json::parse_error& error) {  // "[json.exception.parse_error.101] parse error at line 1, column 1: ..."
    const std::string_view what = error.what();
    return Status::invalid(path + ": not JSON: " + std::string(what.substr(what.find("] ") + 2)));
  }
  *times = {};
  times->path_ = path;
  if (json.is_object() && json.contains("programs") && json["programs"].is_array()) {
    for (const Json& entry : json["programs"]) {
      if (!is_program(entry) || !is_time(entry, "p50_us")) {
        return Status::invalid(path + ": " + dump(entry, -1).substr(0, 200) +
                               " is not the time of a program: it needs program and p50_us");
      }
      times->p50_us_[entry["program"].get<uint32_t>()] = entry["p50_us"].get<double>();
    }
  }
  if (json.is_object() && json.contains("times")) json = Json(json["times"]);
  if (!json.is_array())
    return Status::invalid(path + ": not the JSON array of times that remote-replay --bench --json writes");
  for (const Json& entry : json) {
    const bool good =
        is_program(entry) && is_count(entry, "node") && is_time(entry, "p50_us") && is_time(entry, "p99_us");
    if (!good) {
      return Status::invalid(path + ": " + dump(entry, -1).substr(0, 200) +
                             " is not a time: it needs program, node, p50_us and p99_us");
    }
    NodeTime& time = times->nodes_[entry["program"].get<uint32_t>()][entry["node"].get<uint64_t>()];
    time = {entry["p50_us"].get<double>(), entry["p99_us"].get<double>()};
    if (entry.contains("runner") && entry["runner"].is_string()) time.runner = entry["runner"].get<std::string>();
  }
  return {};
}

Status Times::of(uint32_t program, size_t nodes, std::vector<std::optional<NodeTime>>* times) const {
  const auto found = nodes_.find(program);
  if (found == nodes_.end()) {
    return Status::invalid(path_ + ": it has no times of program " + std::to_string(program) +
                           "; choose with --program: it has " + (nodes_.empty() ? "none" : programs()));
  }
  times->assign(nodes, std::nullopt);
  for (const auto& [node, time] : found->second) {
    if (node >= nodes) {
      return Status::invalid(path_ + ": it has a time of node " + std::to_string(node) + " of program " +
                             std::to_string(program) + ", but the graph has " + std::to_string(nodes) +
                             " nodes; is the file of another capture?");
    }
    (*times)[node] = time;
  }
  return {};
}

double Times::p50_us(uint32_t program) const {
  const auto found = p50_us_.find(program);
  return found == p50_us_.end() ? 0 : found->second;
}

std::string Times::programs() const {
  std::vector<uint32_t> numbers;
  for (const auto& [number, nodes] : nodes_) numbers.push_back(number);
  return number_list(numbers);
}

}  // namespace torch_remote::tools
