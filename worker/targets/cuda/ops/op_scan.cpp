#include <algorithm>
#include <optional>

#include "worker/targets/cuda/kernels/arguments.h"
#include "worker/targets/cuda/ops/op_plans_generated.h"

// Running sums, maxima and minima along a dim. There is no compiled code for them, so that sums have a kernel, too.
namespace torch_remote::worker::cuda {
namespace {

// At least this many adjacent lines are scanned by one thread each.
constexpr int64_t kMinAdjacentLines = 32;

struct ScanKernels {
  const char *lines, *columns;
};

// `positions`: where the positions of maxima or minima go; none for sums.
void scan(PlanBuilder& plan, const ScanKernels& kernels, Location in, ir::DType dtype, const OuterLengthInner& dims,
          const OpTensor& to, Location positions = {}, bool minimum = false) {
  const int64_t lines = dims.length == 0 ? 0 : dims.outer * dims.inner;
  const bool by_columns = dims.inner >= kMinAdjacentLines;
  const ScanArguments arguments{.outer = dims.outer,
                                .length = dims.length,
                                .inner = dims.inner,
                                .in_dtype = static_cast<i64>(part_of(dtype)),
                                .out_dtype = static_cast<i64>(part_of(to.dtype)),
                                .minimum = minimum ? 1 : 0};
  const Location out = plan.output(to);
  plan.launch(KernelFile::kScan, by_columns ? kernels.columns : kernels.lines, arguments,
              by_columns ? blocks_for(lines) : std::min(lines, kMaxBlocks))
      .at(&ScanArguments::in, in)
      .at(&ScanArguments::out, out)
      .at(&ScanArguments::positions, positions);
}

Status extreme(OpNode& node, PlanBuilder& plan, bool minimum) {
  const std::optional<OpTensor> self = node.tensor("self"), to = node.result(0), indices = node.result(1);
  if (!self || !to || ir::is_complex(to->dtype)) return unsupported("without a result");
  if (to->count() != self->count() || !is_of(indices, ir::DType::kInt64, self->count())) {
    return unsupported("into another size");
  }
  const Location in = plan.packed(*self);
  const Location positions = indices ? plan.output(*indices) : plan.scratch(static_cast<uint64_t>(self->count()) * 8);
  const ScanKernels kernels = ir::is_float(to->dtype)
                                  ? ScanKernels{"scan_extreme_float_rows", "scan_extreme_float_columns"}
                                  : ScanKernels{"scan_extreme_int_rows", "scan_extreme_int_columns"};
  scan(plan, kernels, in, self->dtype, split(self->sizes, node.integer("dim")), *to, positions, minimum);
  return {};
}

}  // namespace

Status scan_plans::largest(OpNode& node, PlanBuilder& plan) { return extreme(node, plan, false); }
Status scan_plans::smallest(OpNode& node, PlanBuilder& plan) { return extreme(node, plan, true); }

// Adds real or complex numbers.
Status scan_plans::running_sum(OpNode& node, PlanBuilder& plan) {
  const std::optional<OpTensor> self = node.tensor("self"), to = node.result(0);
  if (!self || !to || to->dtype == ir::DType::kBool) return unsupported("without a result");
  if (to->count() != self->count()) return unsupported("into another size");
  const bool is_complex = ir::is_complex(to->dtype);
  if (!is_complex && !is_kernel_dtype(to->dtype)) return unsupported("of these dtypes");
  OuterLengthInner dims = split(self->sizes, node.integer("dim"));
  if (is_complex) dims.inner *= 2;  // Real and imaginary parts are adjacent.
  const ir::DType dtype = is_complex || ir::is_complex(self->dtype) ? to->dtype : self->dtype;
  const ScanKernels kernels = is_complex || ir::is_float(to->dtype)
                                  ? ScanKernels{"scan_sum_float_rows", "scan_sum_float_columns"}
                                  : ScanKernels{"scan_sum_int_rows", "scan_sum_int_columns"};
  scan(plan, kernels, plan.packed(*self, dtype), dtype, dims, *to);
  return {};
}

}  // namespace torch_remote::worker::cuda
