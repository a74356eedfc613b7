#include <algorithm>

#include "worker/targets/cuda/kernels/margin_arguments.h"
#include "worker/targets/cuda/ops/op_plans_generated.h"
#include "worker/targets/cuda/ops/op_reduce.h"

// Margin losses (multi_margin_loss, multilabel_margin_loss), and their gradients.
namespace torch_remote::worker::cuda {
namespace {

using ir::DType;

enum class MarginReduction : int64_t { kNone, kMean, kSum };
MarginReduction margin_reduction(OpNode& node) {
  return static_cast<MarginReduction>(node.integer("reduction", static_cast<int64_t>(MarginReduction::kMean)));
}

constexpr int64_t kMaxMarginRows = 1 << 16;  // Blocks at most.

// Reads [rows, length] from a tensor with at most two dims.
bool read_margin_rows(OpNode& node, const OpTensor& self, MarginArguments* arguments) {
  if (self.sizes.size() > 2 || !ir::is_float(self.dtype)) return false;
  arguments->rows = self.sizes.size() == 2 ? self.sizes[0] : 1;
  arguments->length = self.sizes.empty() ? 1 : self.sizes.back();
  arguments->dtype = static_cast<i64>(self.dtype);
  arguments->margin = node.number("margin", 1);
  arguments->squares = node.integer("p", 1) == 2 ? 1 : 0;
  arguments->scale = 1 / static_cast<double>(arguments->length);
  return true;
}

// Whether there is a label for each row, or for each element, and a weight for each class.
bool has_operands(const MarginArguments& arguments, const OpTensor& self, const OpTensor& target,
                  const std::optional<OpTensor>& weight, bool has_labels) {
  return target.count() == (has_labels ? self.count() : arguments.rows) && has_count(weight, arguments.length);
}

Status margin_loss(OpNode& node, PlanBuilder& plan, bool has_labels) {
  const auto self = node.tensor("self"), target = node.tensor("target"), to = node.result(0);
  const auto weight = node.tensor("weight");
  std::optional<OpTensor> is_target;
  if (has_labels) is_target = node.result(1);
  MarginArguments arguments;
  if (!self || !target || !to || !read_margin_rows(node, *self, &arguments))
    return unsupported("of other dims or dtypes");
  const MarginReduction reduction = margin_reduction(node);
  const bool is_each = reduction == MarginReduction::kNone;
  if (is_each ? to->count() != arguments.rows : to->count() != 1) return unsupported("into another size");
  if (!has_operands(arguments, *self, *target, weight, has_labels) || !ir::is_float(to->dtype) ||
      !is_of(is_target, self->dtype, self->count())) {
    return unsupported("of sizes that do not match");
  }
  // Losses that are summed are summed in f64.
  const OpTensor rows{
      .location = is_each ? plan.output(*to) : plan.scratch(sizeof(double) * static_cast<uint64_t>(arguments.rows)),
      .dtype = DType::kFloat64,
      .sizes = {arguments.rows},
      .strides = {1}};
  arguments.out_dtype = static_cast<i64>(is_each ? to->dtype : rows.dtype);
  const Location in = plan.packed(*self), labels = plan.packed(*target, DType::kInt64);
  const Location weights = weight ? plan.packed(*weight, self->dtype) : Location();
  Location marks;
  if (has_labels) marks = is_target ? plan.output(*is_target) : plan.scratch(self->nbytes());
  plan.add_operand(-1);
  plan.launch(KernelFile::kMargin, has_labels ? "margin_labels" : "margin_class", arguments,
              std::min(arguments.rows, kMaxMarginRows), 128)
      .at(&MarginArguments::in, in)
      .at(&MarginArguments::target, labels)
      .at(&MarginArguments::weight, weights)
      .at(&MarginArguments::is_target, marks)
      .at(&MarginArguments::out, rows.location)
      .failure([](const MarginArguments& words) { return &words.failure; });
  if (is_each) return {};
  return reduce_all(plan, reduction == MarginReduction::kMean ? ReduceAll::kMean : ReduceAll::kSum, rows, *to);
}

Status margin_loss_backward(OpNode& node, PlanBuilder& plan, bool has_labels) {
  const auto self = node.tensor("self"), target = node.tensor("target"), grad = node.tensor("grad_output");
  const auto weight = node.tensor("weight"), is_target = node.tensor("is_target");
  MarginArguments arguments;
  if (!self || !target || !grad || (has_labels && !is_target) || !read_margin_rows(node, *self, &arguments)) {
    return unsupported("of other dims or dtypes");
  }
  const MarginReduction reduction = margin_reduction(node);
  const bool is_each = reduction == MarginReduction::kNone;
  if (grad->count() != (is_each ? arguments.rows : 1)) return unsupported("of a gradient of another size");
  if (!has_operands(arguments, *self, *target, weight, has_labels) || !has_count(is_target, self->count())) {
    return unsupported("of sizes that do not match");
  }
  arguments.grad_is_each = is_each ? 1 : 0;
  if (reduction == MarginReduction::kMean) arguments.scale /= static_cast<double>(arguments.rows);
  const Location in = plan.packed(*self), labels = plan.packed(*target, DType::kInt64);
  const Location grads = plan.packed(*grad, self->dtype);
  const Location weights = weight ? plan.packed(*weight, self->dtype) : Location();
  const Location marks = has_labels ? plan.packed(*is_target, self->dtype) : Location();
  plan.add_operand(-1);
  const char* const kernel = has_labels ? "margin_labels_backward" : "margin_class_backward";
  return make_result(plan, self->dtype, self->sizes, [=](std::vector<OpStep>* steps, Location to) {
    LaunchBuilder(steps, KernelFile::kMargin, kernel, arguments, std::min(arguments.rows, kMaxMarginRows), 128)
        .at(&MarginArguments::in, in)
        .at(&MarginArguments::target, labels)
        .at(&MarginArguments::weight, weights)
        .at(&MarginArguments::is_target, marks)
        .at(&MarginArguments::grad, grads)
        .at(&MarginArguments::out, to)
        .failure([](const MarginArguments& words) { return &words.failure; });
  });
}

}  // namespace

Status margin_plans::margin_of_class(OpNode& node, PlanBuilder& plan) { return margin_loss(node, plan, false); }
Status margin_plans::margin_of_class_backward(OpNode& node, PlanBuilder& plan) {
  return margin_loss_backward(node, plan, false);
}
Status margin_plans::margin_of_labels(OpNode& node, PlanBuilder& plan) { return margin_loss(node, plan, true); }
Status margin_plans::margin_of_labels_backward(OpNode& node, PlanBuilder& plan) {
  return margin_loss_backward(node, plan, true);
}

}  // namespace torch_remote::worker::cuda
