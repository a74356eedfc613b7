#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ir/graph.h"
#include "ir/status.h"

namespace torch_remote::worker {

// Checks scalar arguments of a group's ops. torch's kernels first convert such a number to the dtype that they compute
// in. If that dtype cannot hold it (300 as uint8, 1e39 as float), they raise an error on the host. Our kernels would
// compute with a wrong number instead.
class ScalarChecks {
 public:
  // Which numbers an op on half types accepts, if torch's CUDA kernel for it computes in float32.
  enum class HalfPolicy : uint8_t {
    kWide,  // Numbers that float32 can hold, as on CUDA.
    kAny,   // Numbers that the half type can hold, because some of torch's CPU kernels refuse others.
  };
  ScalarChecks(const ir::Graph& graph, const ir::Group& group, HalfPolicy half_policy);

  // Returns kOpFailed, with torch's message, for the first number that its dtype cannot hold.
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
