#include "worker/targets/cuda/dnn/convolution/convolution.h"

#include <algorithm>
#include <array>
#include <utility>

#include "ir/ops/op_table_generated.h"
#include "worker/targets/cuda/dnn/cudnn_descriptors.h"
#include "worker/targets/cuda/ops/plan/plan_builder.h"

namespace torch_remote::worker::cuda {
namespace {

using ir::DType;

constexpr size_t kMaxSpaceDims = 3;
constexpr int64_t kMaxNumber = int64_t{1} << 31;  // Paddings, strides and dilations are below it.

// Whether the tensor has this layout and is aligned.
bool has_layout(const OpTensor& tensor, bool channels_last) {
  return tensor.has_strides(dnn::image_strides(tensor.sizes, channels_last)) &&
         tensor.location.offset % dnn::kAlignment == 0;
}

class ConvolutionPlanner {
 public:
  ConvolutionPlanner(const ir::Graph& graph, uint32_t node, std::span<const int64_t> values, ConvolutionLayout layout,
                     ConvolutionPlan* plan, std::vector<ir::Sym>* symbols)
      : node_(graph, node, values, symbols), builder_(node_, &plan->steps), layout_(layout), plan_(*plan) {}

  Status forward();
  Status backward();

 private:
  // An operand or result, and the location that a call uses for it.
  struct CallTensor {
    OpTensor tensor;
    Location location;
  };

  Status read_lists(const OpTensor& image);
  static Status check_space(const OpTensor& image);
  void choose_layout(const std::vector<const OpTensor*>& tensors);
  bool channels_last() const { return channels_last_; }
  OpTensor in_layout(const OpTensor& tensor) const;
  CallTensor read(const OpTensor& tensor);
  CallTensor write(const OpTensor& tensor);
  Status add(ConvolutionPass pass, const CallTensor& image, const CallTensor& filter, const CallTensor& output);
  void fill_with_zeros(const OpTensor& tensor);
  OpTensor dense(const OpTensor& image);
  Status finish();

  OpNode node_;
  PlanBuilder builder_;
  const ConvolutionLayout layout_;
  ConvolutionPlan& plan_;
  bool channels_last_ = false;
  int64_t groups_ = 1;
  std::vector<int64_t> padding_, stride_, dilation_;
};

// Reads one number per space dim. Images with one space dim get another one of size 1 in front.
Status ConvolutionPlanner::read_lists(const OpTensor& image) {
  if (image.sizes.size() < 3 || image.sizes.size() > 2 + kMaxSpaceDims) return unsupported("in more than 3 dims");
  const size_t space = image.sizes.size() - 2;
  const auto take = [&](std::string_view name, int64_t otherwise, std::vector<int64_t>* list) {
    *list = node_.integers(name);
    if (list->size() == 1) list->resize(space, list->front());
    if (list->size() != space) return false;
    // Paddings are 0 or more, strides and dilations 1 or more. No product with a size overflows.
    for (const int64_t number : *list) {
      if (number < otherwise || number >= kMaxNumber) return false;
    }
    if (space == 1) list->insert(list->begin(), otherwise);
    return true;
  };
  groups_ = node_.integer("groups", 1);
  if (groups_ < 1) return unsupported("of such groups");
  const bool good = take("padding", 0, &padding_) && take("stride", 1, &stride_) && take("dilation", 1, &dilation_);
  return good ? Status() : unsupported("with such paddings, strides or dilations");
}

// Torch's rule: an image without points is an error, unless its batch or its channels are 0.
Status ConvolutionPlanner::check_space(const OpTensor& image) {
  if (image.count() != 0 || image.sizes[0] == 0 || image.sizes[1] == 0) return {};
  std::vector<int64_t> sizes = image.sizes;
  if (sizes.size() == 3) sizes.insert(sizes.begin() + 2, 1);
  std::string text;
  for (const int64_t size : sizes) text += (text.empty() ? "" : ", ") + std::to_string(size);
  return {ErrorCode::kOpFailed,
          "Only zero batch or zero channel inputs are supported, but got input shape: [" + text + "]", "RuntimeError"};
}

void ConvolutionPlanner::choose_layout(const std::vector<const OpTensor*>& tensors) {
  std::array<uint64_t, 2> moved{};  // Bytes.
  for (const OpTensor* tensor : tensors) {
    for (const bool last : {false, true}) moved[last] += has_layout(*tensor, last) ? 0 : tensor->nbytes();
  }
  const bool only_first = tensors.front()->dtype == DType::kFloat64;
  channels_last_ = !only_first && moved[1] < moved[0];
  if (layout_ == ConvolutionLayout::kOther && !only_first) channels_last_ = !channels_last_;
}

OpTensor ConvolutionPlanner::in_layout(const OpTensor& tensor) const {
  OpTensor made = tensor;
  made.strides = dnn::image_strides(tensor.sizes, channels_last());
  return made;
}

ConvolutionPlanner::CallTensor ConvolutionPlanner::read(const OpTensor& tensor) {
  if (has_layout(tensor, channels_last())) return {tensor, tensor.location};
  OpTensor moved = in_layout(tensor);
  moved.location = builder_.scratch(tensor.nbytes());
  builder_.copy(tensor, moved);
  return {tensor, moved.location};
}

ConvolutionPlanner::CallTensor ConvolutionPlanner::write(const OpTensor& tensor) {
  return {tensor, builder_.output(tensor, in_layout(tensor), has_layout(tensor, channels_last()))};
}

Status ConvolutionPlanner::add(ConvolutionPass pass, const CallTensor& image, const CallTensor& filter,
                               const CallTensor& output) {
  ConvolutionProblem problem;
  problem.pass = pass;
  problem.type = *dnn::type_of(image.tensor.dtype);
  problem.channels_last = channels_last();
  problem.image = image.tensor.sizes;
  problem.filter = filter.tensor.sizes;
  problem.output = output.tensor.sizes;
  for (auto* sizes : {&problem.image, &problem.filter, &problem.output}) {
    if (sizes->size() == 3) sizes->insert(sizes->begin() + 2, 1);
  }
  const int64_t inputs = problem.image[1], outputs = problem.output[1], each = problem.filter[1];
  const bool fits = each > 0 && problem.image[0] == problem.output[0] && outputs == problem.filter[0] &&
                    inputs % each == 0 && inputs / each == groups_ && outputs % groups_ == 0;
  if (!fits) return unsupported("of sizes that do not match");
  problem.padding = padding_;
  problem.stride = stride_;
  problem.dilation = dilation_;
  // The output padding of a transposed convolution makes its output larger or smaller than the padding implies.
  for (size_t d = 0; d < padding_.size(); ++d) {
    const int64_t image_size = problem.image[d + 2], output_size = problem.output[d + 2];
    const int64_t reach = dilation_[d] * (problem.filter[d + 2] - 1) + 1;
    int64_t after = padding_[d];
    if ((image_size + 2 * after - reach) / stride_[d] + 1 != output_size) {
      after = (output_size - 1) * stride_[d] + reach - image_size - padding_[d];
    }
    if (after < 0) return unsupported("with an output padding of more than padding and stride");
    problem.padding_after.push_back(after);
  }
  plan_.calls.push_back({std::move(problem), image.location, filter.location, output.location});
  return {};
}

void ConvolutionPlanner::fill_with_zeros(const OpTensor& tensor) {
  OpTensor zero = tensor;
  zero.location = builder_.scratch(ir::item_size(tensor.dtype));
  zero.sizes.assign(tensor.sizes.size(), 1);
  builder_.zero(zero.location, ir::item_size(tensor.dtype));
  builder_.copy(zero, tensor);
}

// Kernels sum channels only of images that are dense in one of the two layouts; others are packed first.
OpTensor ConvolutionPlanner::dense(const OpTensor& image) {
  OpTensor last = image;
  std::rotate(last.sizes.begin() + 1, last.sizes.begin() + 2, last.sizes.end());
  std::rotate(last.strides.begin() + 1, last.strides.begin() + 2, last.strides.end());
  if (image.is_packed() || last.is_packed()) return image;
  OpTensor made = image;
  made.location = builder_.packed(image);
  made.strides = packed_strides(image.sizes);
  return made;
}

// Adds the copies after the calls.
Status ConvolutionPlanner::finish() {
  plan_.before = plan_.steps.steps.size();
  return builder_.finish();
}

Status ConvolutionPlanner::forward() {
  const auto input = node_.tensor("input"), weight = node_.tensor("weight"), bias = node_.tensor("bias");
  const auto result = node_.result(0);
  if (!input || !weight || !result) return unsupported("without operands");
  if (Status status = read_lists(*input); !status.ok()) return status;
  if (Status status = check_space(*input); !status.ok()) return status;
  const bool transposed = node_.flag("transposed");
  const size_t rank = input->sizes.size();
  if (weight->sizes.size() != rank || result->sizes.size() != rank ||
      (bias && bias->sizes != std::vector<int64_t>{result->sizes[1]})) {
    return unsupported("of sizes that do not match");
  }
  if (bias) plan_.bias = ChannelBias{*result, *bias, false};
  if (input->count() == 0 || weight->count() == 0) {
    fill_with_zeros(*result);
    return finish();
  }
  choose_layout({&*input, &*weight, &*result});
  const CallTensor in = read(*input), filter = read(*weight), out = write(*result);
  if (bias && !transposed) plan_.call_bias = builder_.packed(*bias);
  Status status = transposed ? add(ConvolutionPass::kBackwardData, out, filter, in)
                             : add(ConvolutionPass::kForward, in, filter, out);
  return status.ok() ? finish() : status;
}

Status ConvolutionPlanner::backward() {
  const auto grad = node_.tensor("grad_output"), input = node_.tensor("input"), weight = node_.tensor("weight");
  if (!grad || !input || !weight) return unsupported("without operands");
  if (Status status = read_lists(*input); !status.ok()) return status;
  const bool transposed = node_.flag("transposed");
  // Unused gradients have no view.
  const auto grad_input = node_.result(0), grad_weight = node_.result(1), grad_bias = node_.result(2);
  const size_t rank = input->sizes.size();
  const bool fits = weight->sizes.size() == rank && grad->sizes.size() == rank &&
                    (!grad_input || grad_input->sizes == input->sizes) &&
                    (!grad_weight || grad_weight->sizes == weight->sizes) &&
                    (!grad_bias || grad_bias->sizes == std::vector<int64_t>{grad->sizes[1]});
  if (!fits) return unsupported("of sizes that do not match");
  const bool nothing = grad->count() == 0 || input->count() == 0 || weight->count() == 0;
  if (grad_bias && grad->count() == 0 && grad_bias->count() != 0) {
    fill_with_zeros(*grad_bias);
  } else if (grad_bias && grad->count() == grad->sizes[1] && grad->count() != 0) {
    OpTensor channels = *grad;  // Nothing to sum.
    channels.sizes = {grad->sizes[1]};
    channels.strides = {grad->strides[1]};
    builder_.copy(channels, *grad_bias);
  } else if (grad_bias && grad->count() != 0) {
    plan_.bias = ChannelBias{dense(*grad), *grad_bias, true};
  }
  if (nothing) {
    for (const auto& made : {grad_input, grad_weight}) {
      if (made && made->count() != 0) fill_with_zeros(*made);
    }
    return finish();
  }
  Status status;
  if (grad_input || grad_weight) {
    std::vector<const OpTensor*> tensors = {&*grad};
    if (grad_input) tensors.insert(tensors.end(), {&*weight, &*grad_input});
    if (grad_weight) tensors.insert(tensors.end(), {&*input, &*grad_weight});
    choose_layout(tensors);
    const CallTensor given = read(*grad);
    if (grad_input) {
      const CallTensor filter = read(*weight), made = write(*grad_input);
      status = transposed ? add(ConvolutionPass::kForward, given, filter, made)
                          : add(ConvolutionPass::kBackwardData, made, filter, given);
    }
    if (status.ok() && grad_weight) {
      const CallTensor in = read(*input), made = write(*grad_weight);
      status = transposed ? add(ConvolutionPass::kBackwardFilter, given, made, in)
                          : add(ConvolutionPass::kBackwardFilter, in, made, given);
    }
  }
  return status.ok() ? finish() : status;
}

}  // namespace

bool is_convolution_op(ir::Opcode opcode) {
  return opcode == ir::ops::aten_convolution || opcode == ir::ops::aten_convolution_backward;
}

bool is_convolution(const ir::Graph& graph, const ir::Node& node) {
  if (!is_convolution_op(node.opcode)) return false;
  std::optional<DType> dtype;
  bool same = true;
  ir::for_each_view(node, [&](uint32_t view, bool) {
    same = same && !graph.views[view].dynamic && dtype.value_or(graph.views[view].dtype) == graph.views[view].dtype;
    dtype = graph.views[view].dtype;
  });
  return same && dtype && dnn::type_of(*dtype);
}

Status plan_convolution(const ir::Graph& graph, uint32_t node, std::span<const int64_t> values,
                        ConvolutionLayout layout, ConvolutionPlan* plan, std::vector<ir::Sym>* symbols) {
  *plan = {};
  ConvolutionPlanner planner(graph, node, values, layout, plan, symbols);
  return graph.nodes[node].opcode == ir::ops::aten_convolution ? planner.forward() : planner.backward();
}

std::string ConvolutionProblem::key_of() const {
  std::string key = std::to_string(static_cast<int>(pass)) + "t" + std::to_string(static_cast<int>(type)) +
                    (channels_last ? "l" : "") + (adds_bias ? "b" : "") + (tf32 ? "x" : "");
  for (const std::vector<int64_t>* const list :
       {&image, &filter, &output, &padding, &padding_after, &stride, &dilation}) {
    key += ":";
    for (const int64_t number : *list) key += std::to_string(number) + ",";
  }
  return key;
}

}  // namespace torch_remote::worker::cuda
