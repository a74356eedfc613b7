#include "worker/targets/cuda/dnn/batch_norm/batch_norm_plan.h"

#include <optional>

#include "ir/ops/op_table_generated.h"
#include "worker/targets/cuda/dnn/cudnn_descriptors.h"
#include "worker/targets/cuda/ops/plan/plan_builder.h"

namespace torch_remote::worker::cuda {
namespace {

using ir::DType;

bool is_channels_last(const OpTensor& tensor) { return tensor.has_strides(dnn::image_strides(tensor.sizes, true)); }

bool is_aligned(const OpTensor& tensor) { return tensor.location.offset % dnn::kAlignment == 0; }

// Whether cuDNN can use the tensor as one f32 number per channel.
bool is_of_channels(const OpTensor& tensor) {
  return tensor.dtype == DType::kFloat32 && tensor.is_packed() && is_aligned(tensor);
}

class BatchNormPlanner {
 public:
  BatchNormPlanner(const ir::Graph& graph, uint32_t node, std::span<const int64_t> values, BatchNormPlan* plan,
                   std::vector<ir::Sym>* symbols)
      : node_(graph, node, values, symbols), builder_(node_, &plan->steps), plan_(*plan) {
    plan_.epsilon = static_cast<float>(node_.number("eps"));
    plan_.momentum = static_cast<float>(node_.number("momentum"));
  }

  Status forward();
  Status backward();
  Status finish() { return builder_.finish(); }

 private:
  Status take_input();
  OpTensor image(const OpTensor& like) const;
  Location read_image(const OpTensor& tensor);
  Location write_image(const OpTensor& tensor);
  Location read_channels(const OpTensor& tensor);
  // A result that is not wanted is written to scratch memory.
  Location write_channels(const std::optional<OpTensor>& tensor);

  OpNode node_;
  PlanBuilder builder_;
  BatchNormPlan& plan_;
  OpTensor input_;
};

Status BatchNormPlanner::take_input() {
  const auto input = node_.tensor("input");
  if (!input || input->sizes.size() < 4 || input->sizes.size() > 5) return unsupported("of other than 4 or 5 dims");
  // With one point or one channel, both layouts are the same; the hand-written kernels execute these.
  if (!is_channels_last(*input) || input->is_packed()) return unsupported("of images with another memory format");
  input_ = *input;
  plan_.problem.type = *dnn::narrow_type_of(input_.dtype);
  plan_.problem.sizes = input_.sizes;
  plan_.input = read_image(input_);
  return {};
}

OpTensor BatchNormPlanner::image(const OpTensor& like) const {
  OpTensor made = like;
  made.dtype = input_.dtype;
  made.strides = dnn::image_strides(like.sizes, true);
  return made;
}

Location BatchNormPlanner::read_image(const OpTensor& tensor) {
  node_.require(tensor.sizes == input_.sizes);
  if (tensor.dtype == input_.dtype && is_channels_last(tensor) && is_aligned(tensor)) return tensor.location;
  OpTensor made = image(tensor);
  made.location = builder_.scratch(made.nbytes());
  builder_.copy(tensor, made);
  return made.location;
}

Location BatchNormPlanner::write_image(const OpTensor& tensor) {
  const bool fits = tensor.sizes == input_.sizes && tensor.dtype == input_.dtype;
  node_.require(fits);
  if (!fits) return {};
  return builder_.output(tensor, image(tensor), is_channels_last(tensor) && is_aligned(tensor));
}

Location BatchNormPlanner::read_channels(const OpTensor& tensor) {
  node_.require(tensor.count() == input_.sizes[1]);
  if (is_of_channels(tensor)) return tensor.location;
  return builder_.copy_of(tensor, DType::kFloat32, {input_.sizes[1]}).location;
}

Location BatchNormPlanner::write_channels(const std::optional<OpTensor>& tensor) {
  const bool is_there = tensor && tensor->count() != 0;
  node_.require(!is_there || tensor->count() == input_.sizes[1]);
  const OpTensor made{{}, DType::kFloat32, {input_.sizes[1]}, {1}};
  return is_there ? builder_.output(*tensor, made, is_of_channels(*tensor)) : builder_.scratch(made.nbytes());
}

Status BatchNormPlanner::forward() {
  if (!node_.flag("training")) return unsupported("with given statistics");
  if (Status status = take_input(); !status.ok()) return status;
  const auto weight = node_.tensor("weight"), bias = node_.tensor("bias");
  const auto mean = node_.tensor("running_mean"), variance = node_.tensor("running_var");
  const auto result = node_.result(0);
  if (!weight || !bias || !result || mean.has_value() != variance.has_value()) return unsupported("without operands");
  plan_.scale = read_channels(*weight);
  plan_.bias = read_channels(*bias);
  plan_.problem.has_running_stats = mean.has_value();
  if (mean) {
    plan_.mean_before = read_channels(*mean);
    plan_.variance_before = read_channels(*variance);
    plan_.mean_after = write_channels(mean);  // Written to other memory, as the old statistics are read.
    plan_.variance_after = write_channels(variance);
  }
  plan_.output = write_image(*result);
  plan_.mean = write_channels(node_.result(1));
  plan_.inverse_std = write_channels(node_.result(2));
  plan_.before = plan_.steps.steps.size();
  return {};
}

Status BatchNormPlanner::backward() {
  if (!node_.flag("train")) return unsupported("with given statistics");
  if (Status status = take_input(); !status.ok()) return status;
  plan_.problem.backward = true;
  const auto grad = node_.tensor("grad_out"), weight = node_.tensor("weight"), mean = node_.tensor("save_mean"),
             inverse_std = node_.tensor("save_invstd");
  const auto grad_input = node_.result(0);
  if (!grad || !weight || !mean || !inverse_std || !grad_input || grad->sizes != input_.sizes) {
    return unsupported("without operands");
  }
  plan_.grad = read_image(*grad);
  plan_.scale = read_channels(*weight);
  plan_.mean = read_channels(*mean);
  plan_.inverse_std = read_channels(*inverse_std);
  plan_.grad_input = write_image(*grad_input);
  plan_.grad_scale = write_channels(node_.result(1));
  plan_.grad_bias = write_channels(node_.result(2));
  plan_.before = plan_.steps.steps.size();
  return {};
}

}  // namespace

bool is_batch_norm_op(ir::Opcode opcode) {
  return opcode == ir::ops::aten_native_batch_norm || opcode == ir::ops::aten_native_batch_norm_backward ||
         opcode == ir::ops::aten__native_batch_norm_legit || opcode == ir::ops::aten__native_batch_norm_legit_no_stats;
}

bool is_batch_norm(const ir::Graph& graph, const ir::Node& node) {
  if (!is_batch_norm_op(node.opcode)) return false;
  bool good = true;
  ir::for_each_view(node, [&](uint32_t view, bool) {
    good = good && !graph.views[view].dynamic && dnn::narrow_type_of(graph.views[view].dtype);
  });
  return good;
}

Status plan_batch_norm(const ir::Graph& graph, uint32_t node, std::span<const int64_t> values, BatchNormPlan* plan,
                       std::vector<ir::Sym>* symbols) {
  *plan = {};
  BatchNormPlanner planner(graph, node, values, plan, symbols);
  Status status =
      graph.nodes[node].opcode == ir::ops::aten_native_batch_norm_backward ? planner.backward() : planner.forward();
  if (status.ok()) status = planner.finish();
  return status;
}

}  // namespace torch_remote::worker::cuda
