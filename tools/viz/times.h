#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ir/status.h"
#include "tools/viz/page.h"

// Times of programs and of their nodes: the output of remote-replay --bench --json.
namespace torch_remote::tools {

class Times {
 public:
  // Reads an array of {"program", "node", "p50_us", "p99_us"} with an optional "runner", or an object that has such an
  // array as "times", and one of {"program", "p50_us"} as "programs". Returns kInvalid if the file has another format.
  static Status read(const std::string& path, Times* times);

  bool has(uint32_t program) const { return nodes_.contains(program); }
  // Sets the times of `program`, whose graph has `nodes` nodes. Returns kInvalid if the file names a node that the
  // graph lacks, or has no entry of this program.
  Status of(uint32_t program, size_t nodes, std::vector<std::optional<NodeTime>>* times) const;
  // Microseconds of one run of the program; 0: unknown.
  double p50_us(uint32_t program) const;
  // "1, 2, 7": the programs that have times.
  std::string programs() const;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  std::map<uint32_t, std::map<uint64_t, NodeTime>> nodes_;  // by program and node
  std::map<uint32_t, double> p50_us_;                       // by program
};

}  // namespace torch_remote::tools
