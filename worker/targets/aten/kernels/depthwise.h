#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <span>
#include <vector>

#include "ir/graph.h"
#include "worker/targets/cpu/loops/depthwise_call.h"

// Convolutions of each channel alone, and their gradients, by loops of our own: float32, in one or two dims, of tensors
// that lie as they are made. oneDNN's kernels for these wait for each other's sums in gradients of kernels, and go
// through images in blocks of channels, for which they are turned round.
namespace torch_remote::worker::aten {

// The loops for this processor; null: there are none.
const DepthwiseLoops* depthwise_loops();

// The node may be one that the loops do, in some runs.
bool may_be_depthwise(const ir::Node& node);

// Multiplications of a call from which on the loops gain something.
inline constexpr int64_t kLeastDepthwise = 1 << 18;

// Does it, given the arguments of aten::convolution, or of aten::convolution_backward: its results, of which some may
// be undefined. None at all: it is torch's, as all is that multiplies less than `least` numbers.
std::vector<at::Tensor> depthwise(const DepthwiseLoops& loops, const ir::Node& node,
                                  std::span<const c10::IValue> arguments, int64_t least = kLeastDepthwise);

}  // namespace torch_remote::worker::aten
