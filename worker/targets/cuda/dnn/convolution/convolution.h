#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "ir/status.h"
#include "worker/targets/cuda/dnn/cudnn.h"
#include "worker/targets/cuda/launch/location.h"
#include "worker/targets/cuda/ops/plan/op_plan.h"
#include "worker/targets/cuda/ops/plan/op_tensor.h"

// Convolutions with cuDNN: which nodes are convolutions, and which calls execute a node with given sizes and strides.
// Needs no GPU.
namespace torch_remote::worker::cuda {

// Whether the op is a convolution or its gradient.
bool is_convolution_op(ir::Opcode opcode);
// Whether cuDNN may support the node: its op is a convolution, and all its tensors have the same supported dtype.
bool is_convolution(const ir::Graph& graph, const ir::Node& node);

// Which tensor is computed from the other two: the output, the gradient of the image, or the gradient of the filter.
enum class ConvolutionPass : uint8_t { kForward, kBackwardData, kBackwardFilter };

// One call, without addresses. Tensors are dense, and begin at multiples of 16 bytes.
struct ConvolutionProblem {
  ConvolutionPass pass = ConvolutionPass::kForward;
  dnn::Type type = dnn::Type::kFloat32;
  bool channels_last = false;  // All three tensors; otherwise contiguous.
  bool adds_bias = false;      // The forward pass adds one number per channel.
  bool tf32 = false;           // f32 operands may be rounded to tf32.
  bool deterministic = false;  // Only the heuristic's first choice with reproducible sums, even if memory is short.
  bool tune = false;           // The fastest algorithm is found by timing. Not together with `deterministic`.
  // Sizes: the image is [batch, channels, space...], the filter [output channels, channels / groups, space...], and the
  // output [batch, output channels, space...]. There are 2 or 3 space dims, and the lists below have one number for
  // each.
  std::vector<int64_t> image, filter, output;
  std::vector<int64_t> padding, padding_after, stride, dilation;
  auto operator<=>(const ConvolutionProblem&) const = default;

  // One word with everything that a stored choice depends on except the machine. It lacks `deterministic` and `tune`,
  // because only choices of tuned problems are stored.
  std::string key_of() const;
};

struct ConvolutionCall {
  ConvolutionProblem problem;
  Location image, filter, output;  // One of them is written.
};

// One number for each channel (dim 1) that is added to an image, or summed from it.
struct ChannelBias {
  OpTensor image, bias;
  bool sums = false;  // bias = sums over the image; otherwise the bias is added to the image in place.
};

// How to execute a node: the first `before` steps, the calls, the remaining steps, then `bias`. `bias` is skipped if
// the first call already adds it (ConvolutionProblem::adds_bias).
struct ConvolutionPlan {
  OpPlan steps;  // Copies and fills.
  size_t before = 0;
  std::vector<ConvolutionCall> calls;
  std::optional<ChannelBias> bias;
  // Forward only: the bias in a form that a call can add, contiguous.
  std::optional<Location> call_bias;
};

// The layout of the calls: the one that needs fewer copies, or the other one. f64 is never channels last.
enum class ConvolutionLayout : uint8_t { kPreferred, kOther };

// Makes the plan for one run. `values`: the values of the graph's symbols. `symbols` receives the symbols that the plan
// depends on, even on failure. kUnsupported: cuDNN cannot execute the node, and the message says why. Other errors are
// those that torch raises. The caller sets `adds_bias`, `tf32`, `deterministic` and `tune` of the calls' problems.
Status plan_convolution(const ir::Graph& graph, uint32_t node, std::span<const int64_t> values,
                        ConvolutionLayout layout, ConvolutionPlan* plan, std::vector<ir::Sym>* symbols);

}  // namespace torch_remote::worker::cuda
