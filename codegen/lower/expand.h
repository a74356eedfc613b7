#pragma once

#include <cstdint>

#include "codegen/lower/node_emitter.h"

// What a kernel computes for each op.
namespace torch_remote::codegen {

// Emits the values of the member's results. Returns false if no kernel computes this form of the op.
bool expand(NodeEmitter& node);
// Expands the op's scalar tree (OpDesc::tree).
bool expand_expression(NodeEmitter& node);
// Expands ops that read or write at indices.
bool expand_indices(NodeEmitter& node);
// Expands gelu, logit, other activations, and gradients of activations.
bool expand_activation(NodeEmitter& node);
// Values of a loss's argument `reduction`.
enum LossReduction : int64_t { kNoReduction = 0, kMeanReduction = 1 };
// Expands losses of pairs of elements, and their gradients.
bool expand_loss(NodeEmitter& node);
// Expands optimizer steps.
bool expand_optimizer(NodeEmitter& node);

}  // namespace torch_remote::codegen
