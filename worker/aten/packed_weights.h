#pragma once

#include <ATen/core/Tensor.h>

#include "ir/graph.h"
#include "worker/runner/plugin.h"

// Weights of convolutions whose images lie channels last, in that order too: torch's convolution would turn them round
// in each call. They are turned once, and kept as long as nobody writes them (tr_attachment), in the host's memory.
// What is written in each step, as in training, is never kept.
namespace torch_remote::worker::aten {

// The node is one whose weights may be kept: a convolution of images.
bool may_pack_weights(const ir::Node& node);

// `weight` in the order that is best for a convolution of `input`, or an undefined tensor: it is best as it is, it was
// not seen before with these contents, there is no memory for a copy, or something else is kept of them.
at::Tensor packed_weights(tr_attachment* attachment, const at::Tensor& input, const at::Tensor& weight);

}  // namespace torch_remote::worker::aten
