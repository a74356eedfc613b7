#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <span>
#include <vector>

#include "ir/graph.h"

// Ops on images that are, at least partly, channels last, for which torch's kernels take several times as long as on
// contiguous (NCHW) images. They are `cat` of images in different layouts, and float32 group norm. Our group norm adds
// up the statistics of all channels of a position in parallel, where torch processes only the few of a group.
namespace torch_remote::worker::aten {

// Whether the node may be one that these kernels compute, in some runs.
bool may_use_image_kernels(const ir::Node& node);

// Computes the node, given its arguments and a tensor with the layout of its first result. Returns all results, or an
// empty vector if torch should compute the node.
std::vector<at::Tensor> run_image_kernel(const ir::Node& node, std::span<const c10::IValue> arguments,
                                         const at::Tensor& result);

}  // namespace torch_remote::worker::aten
