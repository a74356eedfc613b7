#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <span>
#include <vector>

#include "ir/graph.h"

// Ops on images that lie channels last, or partly so, for which torch's kernels take several times as long as on plain
// ones: `cat` of images that lie in two ways, and group norm in float32, whose statistics are added up for all channels
// of a place side by side (torch goes through the few of a group).
namespace torch_remote::worker::aten {

// The node is one that may be done here, in some runs.
bool may_be_of_images(const ir::Node& node);

// Does it, given its arguments and where its first result is to lie: all of its results. None: it is torch's.
std::vector<at::Tensor> on_images(const ir::Node& node, std::span<const c10::IValue> arguments,
                                  const at::Tensor& result);

}  // namespace torch_remote::worker::aten
