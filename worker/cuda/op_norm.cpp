#include <algorithm>

#include "worker/cuda/kernels/arguments.h"
#include "worker/cuda/kernels/norm_arguments.h"
#include "worker/cuda/op_plan.h"

// Gradients of group norm, which compiled kernels have only of one group.
namespace torch_remote::worker::cuda {
namespace {

constexpr int64_t kMostBlocks = 1 << 16;

Status group_norm_backward(OpPlanner& planner) {
  const auto grad = planner.tensor("grad_out"), input = planner.tensor("input"), mean = planner.tensor("mean"),
             rstd = planner.tensor("rstd"), weight = planner.tensor("weight");
  if (!grad || !input || !mean || !rstd) return refuse("without operands");
  // Those that are not wanted have no view.
  const auto grad_input = planner.result(0), grad_weight = planner.result(1), grad_bias = planner.result(2);
  const int64_t groups = planner.whole("group"), channels = planner.whole("C");
  const auto& of_weights = grad_weight ? grad_weight : grad_bias;
  if (!ir::is_float(input->dtype) || grad->dtype != input->dtype || mean->dtype != rstd->dtype || groups <= 0) {
    return refuse("of such dtypes");
  }
  GroupNormArguments arguments{.batch = planner.whole("N"),
                               .groups = groups,
                               .channels = channels / groups,
                               .space = planner.whole("HxW"),
                               .dtype = static_cast<i64>(input->dtype),
                               .stat_dtype = static_cast<i64>(mean->dtype)};
  if (weight) arguments.weight_dtype = static_cast<i64>(weight->dtype);
  if (of_weights) arguments.grad_weight_dtype = static_cast<i64>(of_weights->dtype);
  const int64_t rows = arguments.batch * channels;
  const Place sums = planner.scratch(static_cast<uint64_t>(rows) * 16);
  const Place from = planner.packed(*grad), of = planner.packed(*input), means = planner.packed(*mean),
              deviations = planner.packed(*rstd);
  const Place weights = weight ? planner.packed(*weight) : Place();
  const Place to = grad_input ? planner.output(*grad_input) : Place(),
              to_weight = grad_weight ? planner.output(*grad_weight) : Place(),
              to_bias = grad_bias ? planner.output(*grad_bias) : Place();
  const auto launch = [&](const char* kernel, int64_t grid) {
    planner.launch(KernelFile::kNorm, kernel, arguments, std::min(grid, kMostBlocks))
        .at(&GroupNormArguments::grad, from)
        .at(&GroupNormArguments::input, of)
        .at(&GroupNormArguments::mean, means)
        .at(&GroupNormArguments::rstd, deviations)
        .at(&GroupNormArguments::weight, weights)
        .at(&GroupNormArguments::sums, sums)
        .at(&GroupNormArguments::grad_input, to)
        .at(&GroupNormArguments::grad_weight, to_weight)
        .at(&GroupNormArguments::grad_bias, to_bias);
  };
  launch("group_norm_sums", rows);
  if (grad_input) launch("group_norm_input", arguments.batch * groups);
  if (of_weights) launch("group_norm_weights", blocks_for(channels));
  return {};
}

constexpr NamedPlan kPlans[] = {{"native_group_norm_backward", group_norm_backward}};

}  // namespace

std::span<const NamedPlan> norm_plans() { return kPlans; }

}  // namespace torch_remote::worker::cuda
