#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ir/status.h"
#include "tools/viz/page.h"

namespace torch_remote::tools {

// Reads the output of remote-replay --bench --json: an array of {"program", "node", "p50_us", "p99_us"}, or an object
// that has such an array as "times". Skips entries of other programs. Returns kInvalid if the file has another format,
// names a node that the graph lacks, or has no entry of this program.
Status read_times(const std::string& path, uint32_t program, size_t nodes, std::vector<std::optional<NodeTime>>* times);

}  // namespace torch_remote::tools
