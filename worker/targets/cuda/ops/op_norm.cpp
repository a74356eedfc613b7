#include <optional>
#include <string_view>

#include "ir/ops/op_table_generated.h"
#include "worker/targets/cuda/ops/op_lowered.h"
#include "worker/targets/cuda/ops/op_plans_generated.h"

// Batch norms without an expansion, as those that have one: they differ in their arguments only.
namespace torch_remote::worker::cuda {
namespace {

OpArgument argument(OpNode& node, std::string_view name) {
  const std::optional<OpTensor> tensor = node.tensor(name);
  return tensor ? OpArgument(*tensor) : OpArgument();
}

}  // namespace

Status norm_plans::batch_norm_with_update(OpNode& node, PlanBuilder& plan) {
  // The functional overload has them as results of their own.
  if (node.ir_node().results.size() > 4) return unsupported("with copies of the running statistics");
  const auto of = [&](std::string_view name) { return argument(node, name); };
  return plan_op(plan, ir::ops::aten_native_batch_norm,
                 {of("input"), of("weight"), of("bias"), of("running_mean"), of("running_var"), true,
                  node.number("momentum"), node.number("eps")},
                 {node.result(0), node.result(1), node.result(2)});
}

Status norm_plans::batch_norm_backward(OpNode& node, PlanBuilder& plan) {
  const auto of = [&](std::string_view name) { return argument(node, name); };
  return plan_op(plan, ir::ops::aten_native_batch_norm_backward,
                 {of("grad_out"), of("input"), of("weight"), of("running_mean"), of("running_var"), of("save_mean"),
                  of("save_var"), node.flag("update"), node.number("eps")},
                 {node.result(0), node.result(1), node.result(2)});
}

}  // namespace torch_remote::worker::cuda
