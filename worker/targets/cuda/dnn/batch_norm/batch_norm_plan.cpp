#include "worker/targets/cuda/dnn/batch_norm/batch_norm_plan.h"

#include <algorithm>
#include <optional>

#include "ir/ops/op_table_generated.h"
#include "worker/targets/cuda/ops/plan/plan_builder.h"

namespace torch_remote::worker::cuda {
namespace {

using ir::DType;

bool is_channels_last(const OpTensor& tensor) {
  const std::vector<int64_t> strides = channels_last_strides(tensor.sizes);
  for (size_t d = 0; d < tensor.sizes.size(); ++d) {
    if (tensor.sizes[d] != 1 && tensor.strides[d] != strides[d]) return false;
  }
  return true;
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
  struct DeferredCopy {
    OpTensor from, to;
  };

  Status take_input();
  OpTensor image(const OpTensor& like) const;
  Location read_image(const OpTensor& tensor);
  Location write_image(const OpTensor& tensor);
  Location read_channels(const OpTensor& tensor);
  // A result that is not wanted is written to scratch memory.
  Location write_channels(const std::optional<OpTensor>& tensor);
  bool is_read(const OpTensor& tensor) const {
    return std::ranges::any_of(read_, [&](uint32_t buffer) { return buffer == tensor.location.buffer; });
  }
  void add_deferred_copies() {
    plan_.before = plan_.steps.steps.size();
    for (const DeferredCopy& deferred : deferred_copies_) builder_.copy(deferred.from, deferred.to);
  }

  OpNode node_;
  PlanBuilder builder_;
  BatchNormPlan& plan_;
  OpTensor input_;
  std::vector<uint32_t> read_;  // buffers
  std::vector<DeferredCopy> deferred_copies_;
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
  made.strides = channels_last_strides(like.sizes);
  return made;
}

Location BatchNormPlanner::read_image(const OpTensor& tensor) {
  node_.require(tensor.sizes == input_.sizes);
  read_.push_back(tensor.location.buffer);
  if (tensor.dtype == input_.dtype && is_channels_last(tensor) && tensor.location.offset % dnn::kAlignment == 0) {
    return tensor.location;
  }
  OpTensor made = image(tensor);
  made.location = builder_.scratch(made.nbytes());
  builder_.copy(tensor, made);
  return made.location;
}

Location BatchNormPlanner::write_image(const OpTensor& tensor) {
  const bool fits = tensor.sizes == input_.sizes && tensor.dtype == input_.dtype;
  node_.require(fits);
  if (!fits) return {};
  if (is_channels_last(tensor) && tensor.location.offset % dnn::kAlignment == 0 && !is_read(tensor))
    return tensor.location;
  OpTensor made = image(tensor);
  made.location = builder_.scratch(made.nbytes());
  deferred_copies_.push_back({made, tensor});
  return made.location;
}

Location BatchNormPlanner::read_channels(const OpTensor& tensor) {
  read_.push_back(tensor.location.buffer);
  node_.require(tensor.count() == input_.sizes[1]);
  if (tensor.dtype == DType::kFloat32 && tensor.is_packed() && tensor.location.offset % dnn::kAlignment == 0) {
    return tensor.location;
  }
  return builder_.copy_of(tensor, DType::kFloat32, {input_.sizes[1]}).location;
}

Location BatchNormPlanner::write_channels(const std::optional<OpTensor>& tensor) {
  const bool is_there = tensor && tensor->count() != 0;
  node_.require(!is_there || tensor->count() == input_.sizes[1]);
  if (is_there && tensor->dtype == DType::kFloat32 && tensor->is_packed() &&
      tensor->location.offset % dnn::kAlignment == 0 && !is_read(*tensor)) {
    return tensor->location;
  }
  const OpTensor made = builder_.scratch_tensor(DType::kFloat32, {input_.sizes[1]});
  if (is_there) deferred_copies_.push_back({made, *tensor});
  return made.location;
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
  add_deferred_copies();
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
  add_deferred_copies();
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
