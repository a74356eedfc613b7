#include "worker/targets/cuda/kernels/arguments.h"
#include "worker/targets/cuda/ops/op_plan.h"

// Cumulative sums and similar scans along a dim.
namespace torch_remote::worker::cuda {
namespace {

using ir::DType;

// At least this many adjacent lines are scanned by one thread each.
constexpr int64_t kMinAdjacentLines = 32;

struct Kernels {
  const char *lines, *columns;
};

Status scan(OpPlanner& planner, const Kernels& of_floats, const Kernels& of_integers, bool has_places, bool minimum) {
  const std::optional<OpTensor> self = planner.tensor("self"), to = planner.result(0);
  if (!self || !to) return unsupported("without a result");
  const bool is_complex = ir::is_complex(to->dtype), is_float = is_complex || ir::is_float(to->dtype);
  if (!is_float && of_integers.lines == nullptr) return unsupported("of integers");
  // Torch has cumulative maxima of bools, and no sums.
  if (to->dtype == ir::DType::kBool && !has_places) return unsupported("of bools");
  OuterLengthInner dims = split(self->sizes, planner.integer("dim"));
  if (is_complex) dims.inner *= 2;  // Real and imaginary parts are adjacent.
  const bool changes = is_complex || ir::is_complex(self->dtype);
  const Location in = planner.packed(*self, changes ? to->dtype : self->dtype), out = planner.output(*to);
  Location positions;
  if (has_places) {
    const std::optional<OpTensor> indices = planner.result(1);
    positions = indices ? planner.output(*indices) : planner.scratch(static_cast<uint64_t>(self->count()) * 8);
  }
  const Kernels& kernels = is_float ? of_floats : of_integers;
  const int64_t lines = dims.length == 0 ? 0 : dims.outer * dims.inner;
  const bool beside = dims.inner >= kMinAdjacentLines;
  const ScanArguments arguments{.outer = dims.outer,
                                .length = dims.length,
                                .inner = dims.inner,
                                .in_dtype = static_cast<i64>(part_of(changes ? to->dtype : self->dtype)),
                                .out_dtype = static_cast<i64>(part_of(to->dtype)),
                                .minimum = minimum ? 1 : 0};
  const int64_t grid = beside ? blocks_for(lines) : std::min<int64_t>(lines, 1 << 16);
  planner.launch(KernelFile::kScan, beside ? kernels.columns : kernels.lines, arguments, grid)
      .at(&ScanArguments::in, in)
      .at(&ScanArguments::out, out)
      .at(&ScanArguments::positions, positions);
  return {};
}

Status sum(OpPlanner& planner) {
  return scan(planner, {"scan_sum_float_rows", "scan_sum_float_columns"}, {"scan_sum_int_rows", "scan_sum_int_columns"},
              false, false);
}
Status product(OpPlanner& planner) {
  return scan(planner, {"scan_product_float_rows", "scan_product_float_columns"},
              {"scan_product_int_rows", "scan_product_int_columns"}, false, false);
}
Status most(OpPlanner& planner, bool minimum) {
  return scan(planner, {"scan_extreme_float_rows", "scan_extreme_float_columns"},
              {"scan_extreme_int_rows", "scan_extreme_int_columns"}, true, minimum);
}
Status largest(OpPlanner& planner) { return most(planner, false); }
Status smallest(OpPlanner& planner) { return most(planner, true); }
Status log_sum_exp(OpPlanner& planner) {
  return scan(planner, {"scan_log_sum_exp_rows", "scan_log_sum_exp_columns"}, {nullptr, nullptr}, false, false);
}

constexpr NamedPlan kScanPlans[] = {{"cumsum", sum, true},         {"cumprod", product},
                                    {"cummax", largest},           {"cummin", smallest},
                                    {"logcumsumexp", log_sum_exp}, {"_logcumsumexp", log_sum_exp}};

}  // namespace

std::span<const NamedPlan> scan_plans() { return kScanPlans; }

}  // namespace torch_remote::worker::cuda
