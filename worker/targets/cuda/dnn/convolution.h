#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "ir/status.h"
#include "worker/targets/cuda/dnn/cudnn.h"
#include "worker/targets/cuda/launch/place.h"
#include "worker/targets/cuda/ops/op_plan.h"

// Convolutions: which nodes are some, and which calls of cuDNN do a node with given sizes and strides. No GPU here.
namespace torch_remote::worker::cuda {

// Whether there is something for the node's op and dtypes.
bool is_convolution_op(ir::Opcode opcode);
bool is_convolution(const ir::Graph& graph, const ir::Node& node);

// What cuDNN computes of the two others: output = image * filter, the gradient of the image, that of the filter.
enum class ConvolutionPass : uint8_t { kForward, kBackwardData, kBackwardFilter };

// A call, but for addresses. Tensors are packed, and begin at multiples of 16 bytes.
struct ConvolutionProblem {
  ConvolutionPass pass = ConvolutionPass::kForward;
  dnn::Type type = dnn::Type::kFloat32;
  bool channels_last = false;  // all three; else in the order of their dims
  bool adds_bias = false;      // to what the forward pass makes: one number for each channel
  bool tf32 = false;           // f32 operands may be rounded to it
  bool deterministic = false;  // always done in the same way, whichever is fastest, with sums that come out the same
  // [batch, channels, space...], [output channels, channels / groups, space...], [batch, output channels, space...];
  // space is 2 or 3 dims, to each of which the other lists have a number.
  std::vector<int64_t> image, filter, output;
  std::vector<int64_t> padding, padding_after, stride, dilation;
  auto operator<=>(const ConvolutionProblem&) const = default;

  // All that a plan depends on but for the machine, in a word.
  std::string key_of() const;
};

struct ConvolutionCall {
  ConvolutionProblem problem;
  Place image, filter, output;  // one of them is written
};

// A number for each channel (the second dim), to an image or from it.
struct ChannelBias {
  OpTensor image, bias;
  bool sums = false;  // bias = sums of the image; else the image gets the bias on top
};

// What is done for a node: the first `before` steps, calls, the other steps, what there is to do with a bias. If the
// first call takes the bias on, that is not done.
struct ConvolutionPlan {
  OpPlan steps;  // moves and fills
  size_t before = 0;
  std::vector<ConvolutionCall> calls;
  std::optional<ChannelBias> bias;
  // Of a forward pass: the bias as a call may take it, packed.
  std::optional<Place> call_bias;
};

// In which layout it should be done: that in which less is moved. f64 is never channels last.
enum class ConvolutionLayout : uint8_t { kPreferred, kOther };

// The plan for one run's values (as OpPlanner has them). kUnsupported: the message says why.
Status plan_convolution(const ir::Graph& graph, uint32_t node, std::span<const int64_t> values,
                        ConvolutionLayout layout, ConvolutionPlan* plan, std::vector<ir::Sym>* symbols);

}  // namespace torch_remote::worker::cuda
