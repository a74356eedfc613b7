#include <algorithm>
#include <optional>

#include "worker/targets/cuda/kernels/arguments.h"
#include "worker/targets/cuda/ops/op_plan.h"
#include "worker/targets/cuda/ops/op_plans_generated.h"

// Cumulative maxima and minima along a dim, with their positions.
namespace torch_remote::worker::cuda {
namespace {

// At least this many adjacent lines are scanned by one thread each.
constexpr int64_t kMinAdjacentLines = 32;

Status extreme(OpPlanner& planner, bool minimum) {
  const std::optional<OpTensor> self = planner.tensor("self"), to = planner.result(0), indices = planner.result(1);
  if (!self || !to || ir::is_complex(to->dtype)) return unsupported("without a result");
  const OuterLengthInner dims = split(self->sizes, planner.integer("dim"));
  const Location in = planner.packed(*self), out = planner.output(*to);
  const Location positions =
      indices ? planner.output(*indices) : planner.scratch(static_cast<uint64_t>(self->count()) * 8);
  const int64_t lines = dims.length == 0 ? 0 : dims.outer * dims.inner;
  const bool by_columns = dims.inner >= kMinAdjacentLines, floats = ir::is_float(to->dtype);
  const char* const kernel = by_columns ? (floats ? "scan_extreme_float_columns" : "scan_extreme_int_columns")
                                        : (floats ? "scan_extreme_float_rows" : "scan_extreme_int_rows");
  const ScanArguments arguments{.outer = dims.outer,
                                .length = dims.length,
                                .inner = dims.inner,
                                .in_dtype = static_cast<i64>(self->dtype),
                                .out_dtype = static_cast<i64>(to->dtype),
                                .minimum = minimum ? 1 : 0};
  planner.launch(KernelFile::kScan, kernel, arguments, by_columns ? blocks_for(lines) : std::min(lines, kMaxBlocks))
      .at(&ScanArguments::in, in)
      .at(&ScanArguments::out, out)
      .at(&ScanArguments::positions, positions);
  return {};
}

}  // namespace

Status scan_plans::largest(OpPlanner& planner) { return extreme(planner, false); }
Status scan_plans::smallest(OpPlanner& planner) { return extreme(planner, true); }

}  // namespace torch_remote::worker::cuda
