#pragma once

#include <ATen/core/stack.h>

#include "frontend/shapes/op_entry.h"

// Shape inference on the client, in three tiers. Tiers 1 and 2 of an op are looked up when it is registered:
//   1. a shape rule of this project (shape_rules.cpp), for the common cases of frequent ops; it declines all others;
//   2. torch's C++ structured meta, called directly;
//   3. the dispatcher's Meta key (Python metas, which are slow), with a cache by exact signature.
// If none of them knows the result, a round trip to the worker does.
namespace torch_remote::frontend {

// The tier that inferred the results. kDynamic: none of them could, so the caller must ask the worker.
enum class Tier { kRule, kStructured, kMetaKey, kDynamic };
// Calls that reach the dispatcher's Meta key are counted per op: torch_remote._C.meta_key_calls().
Tier infer(const OpEntry& op, const c10::IValue* args, Inferred& out);

// The arguments with which a multi-tensor op calls `op.per_tensor_op` for its i-th tensor. Returns false if the op has
// none, or if its arguments cannot be derived from `args`.
bool single_arguments(const OpEntry& op, const c10::IValue* args, size_t i, torch::jit::Stack& single);

// For in-place and out overloads: raises if the arguments are invalid, and resizes `out` arguments. Runs the op at the
// Meta key on mirrors of its arguments, with one meta storage per real storage. Then gives real tensors the sizes that
// their mirrors have got. Signatures that changed nothing are cached. Returns false if there is no meta; then nothing
// was checked or resized.
bool check_mutation(const OpEntry& op, const c10::IValue* args);

bool is_masked_fill(const OpEntry& op);  // the in-place overloads

// A Meta tensor with the same metadata.
at::Tensor meta_like(const at::Tensor& tensor);

}  // namespace torch_remote::frontend
