#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <span>
#include <vector>

#include "ir/graph.h"
#include "worker/targets/cpu/loops/depthwise_call.h"

// Depthwise convolutions and their gradients with our own loops: float32, one or two spatial dims, contiguous (NCHW)
// tensors. oneDNN's kernels are slower here: threads wait for each other's sums in kernel gradients, and images are
// converted to a layout of channel blocks.
namespace torch_remote::worker::aten {

// The loops for this processor; null if there are none.
const DepthwiseLoops* depthwise_loops();

// Whether the node may be one that the loops compute, in some runs.
bool may_use_depthwise_loops(const ir::Node& node);

// Number of multiplications from which on the loops are faster.
inline constexpr int64_t kMinDepthwiseWork = 1 << 18;

// Computes the node, given the arguments of aten::convolution or aten::convolution_backward. Returns its results, of
// which some may be undefined. Returns an empty vector if torch should compute the node; that includes all calls with
// fewer than `least` multiplications.
std::vector<at::Tensor> depthwise(const DepthwiseLoops& loops, const ir::Node& node,
                                  std::span<const c10::IValue> arguments, int64_t least = kMinDepthwiseWork);

}  // namespace torch_remote::worker::aten
