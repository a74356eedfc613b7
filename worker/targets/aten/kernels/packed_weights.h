#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <span>

#include "ir/graph.h"
#include "worker/runner/plugin.h"

// Weights of convolutions whose images lie channels last, in the order that is best for these: torch's convolution
// would turn them round in each call. They are turned once, and kept as long as nobody writes them (tr_attachment), in
// the host's memory. What is written in each step, as in training, is never kept.
namespace torch_remote::worker::aten {

// The node is one whose weights may be kept: a convolution of images.
bool may_pack_weights(const ir::Node& node);

// The weights in the order that is best for a convolution, given its arguments: channels last, or one of oneDNN's own
// (is_mkldnn; only `convolve` takes such). An undefined tensor: they are best as they are, were not seen before with
// these contents, there is no memory for a copy, or something else is kept of them.
at::Tensor packed_weights(tr_attachment* attachment, std::span<const c10::IValue> arguments);

// The convolution of these arguments, with weights in an order of oneDNN's: by the same kernel as with the weights as
// they are.
at::Tensor convolve(std::span<const c10::IValue> arguments, const at::Tensor& weight);

}  // namespace torch_remote::worker::aten
