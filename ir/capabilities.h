#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ir/dtype.h"
#include "ir/graph.h"

namespace torch_remote::ir {

// A worker's abilities in addition to executing single ops. The worker sends them in its hello; passes read them.
struct Capabilities {
  // Targets for which the worker compiles kernels, best first ("x86-64-v4", "sm_90"); empty: it compiles none.
  std::vector<std::string> targets;
  uint32_t group_kind_mask = 0;  // bit i: GroupKind i
  uint64_t dtype_mask = 0;       // bit i: kernels may use DType i
  uint64_t memory = 0;           // bytes that the worker may use
  uint32_t threads = 0;          // threads of the worker's kernels; 0: one for each core
  std::string library_versions;  // versions of libraries that affect results: "ATen 2.13.0"

  // The target that kernels are compiled for; empty if there is none.
  std::string_view target() const { return targets.empty() ? std::string_view() : targets[0]; }
  bool compiles_for_gpu() const { return target().starts_with("sm_"); }
  bool compiles_for_cpu() const { return !targets.empty() && !compiles_for_gpu(); }
  bool supports(GroupKind kind) const { return group_kind_mask >> static_cast<uint32_t>(kind) & 1; }
  bool supports(DType dtype) const { return dtype_mask >> static_cast<uint32_t>(dtype) & 1; }
};

}  // namespace torch_remote::ir
