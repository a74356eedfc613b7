#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <span>

#include "ir/graph.h"
#include "worker/runner/plugin.h"

// Caches convolution weights in the layout that is best for channels-last images, which torch would convert in each
// call. The weights are converted once and cached in the host's memory until they are written (tr_cached_data). Weights
// that each step writes, as in training, are never cached.
namespace torch_remote::worker::aten {

// Whether the node's weights may be cached: it is a convolution of images.
bool may_pack_weights(const ir::Node& node);

// The weights in the best layout for a convolution with these arguments: channels last, or one of oneDNN's own
// (is_mkldnn; only `convolve` accepts it). Returns an undefined tensor in four cases. The weights already have the best
// layout; they were not seen before with these contents; there is no memory for a copy; or the cached data are
// something else.
at::Tensor packed_weights(tr_cached_data* cached_data, std::span<const c10::IValue> arguments);

// Computes the convolution with weights in one of oneDNN's own layouts, by the same kernel as with the original
// weights.
at::Tensor convolve(std::span<const c10::IValue> arguments, const at::Tensor& weight);

}  // namespace torch_remote::worker::aten
