#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ir/graph.h"
#include "ir/status.h"

namespace torch_remote::worker {

// Numbers that are arguments of a group's ops and that torch's kernels convert to the dtype that they compute in before
// anything is done: one that this does not hold (300 as an uint8, 1e39 as a float) is an error, of the host's side.
// Kernels that are not torch's would go on with other bits.
class NumberChecks {
 public:
  enum class Halves : uint8_t {
    kWide,  // computed in float where torch's kernels for CUDA do: what a float holds is held
    kAny,   // whatever a kernel of torch may refuse
  };
  NumberChecks(const ir::Graph& graph, const ir::Group& group, Halves halves);

  // kOpFailed, with torch's words: the first that is not held.
  Status check(std::span<const int64_t> values) const;

 private:
  struct Number {
    ir::ArgTag tag = ir::ArgTag::kNone;
    ir::Sym symbol = ir::kNoSym;
    ir::DType dtype = ir::DType::kFloat64;
  };
  std::vector<Number> numbers_;
};

}  // namespace torch_remote::worker
