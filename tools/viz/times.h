#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ir/status.h"
#include "tools/viz/page.h"

namespace torch_remote::tools {

// Reads what remote-replay --bench --json writes: an array of {"program", "node", "p50_us", "p99_us"}, or an object
// that has such an array as "times". Entries of other programs are left out. kInvalid if the file is something else,
// names a node that the graph does not have, or has no entry of this program.
Status read_times(const std::string& path, uint32_t program, size_t nodes, std::vector<std::optional<NodeTime>>* times);

}  // namespace torch_remote::tools
