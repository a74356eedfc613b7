#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ir/dtype.h"
#include "ir/graph.h"

namespace torch_remote::ir {

// What a worker can do beside running ops one by one: it says so in its greeting, and passes look at it.
struct Capabilities {
  std::vector<std::string>
      targets;               // that it makes kernels for, best first ("x86-64-v4", "sm_90"); none: it makes none
  uint32_t group_kinds = 0;  // bit i: GroupKind i
  uint64_t dtypes = 0;       // bit i: DType i, in kernels
  uint64_t memory = 0;       // bytes that it may use
  uint32_t threads = 0;      // of its kernels; 0: as many as it has cores
  std::string versions;      // of what makes a difference to results: "ATen 2.13.0"

  bool does(GroupKind kind) const { return group_kinds >> static_cast<uint32_t>(kind) & 1; }
  bool does(DType dtype) const { return dtypes >> static_cast<uint32_t>(dtype) & 1; }
};

}  // namespace torch_remote::ir
