#include <optional>
#include <string_view>

#include "ir/ops/op_table_generated.h"
#include "worker/targets/cuda/ops/op_plan.h"
#include "worker/targets/cuda/ops/op_plans_generated.h"

// Batch norms without an expansion, as those that have one: they differ in their arguments only.
namespace torch_remote::worker::cuda {
namespace {

OpArgument argument(OpPlanner& planner, std::string_view name) {
  const std::optional<OpTensor> tensor = planner.tensor(name);
  return tensor ? OpArgument(*tensor) : OpArgument();
}

}  // namespace

Status norm_plans::batch_norm_with_update(OpPlanner& planner) {
  // The functional overload has them as results of their own.
  if (planner.node().results.size() > 4) return unsupported("with copies of the running statistics");
  const auto of = [&](std::string_view name) { return argument(planner, name); };
  return plan_op(planner, ir::ops::aten_native_batch_norm,
                 {of("input"), of("weight"), of("bias"), of("running_mean"), of("running_var"), true,
                  planner.number("momentum"), planner.number("eps")},
                 {planner.result(0), planner.result(1), planner.result(2)});
}

Status norm_plans::batch_norm_backward(OpPlanner& planner) {
  const auto of = [&](std::string_view name) { return argument(planner, name); };
  return plan_op(planner, ir::ops::aten_native_batch_norm_backward,
                 {of("grad_out"), of("input"), of("weight"), of("running_mean"), of("running_var"), of("save_mean"),
                  of("save_var"), planner.flag("update"), planner.number("eps")},
                 {planner.result(0), planner.result(1), planner.result(2)});
}

}  // namespace torch_remote::worker::cuda
