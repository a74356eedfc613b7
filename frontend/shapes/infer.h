#pragma once

#include <ATen/core/stack.h>

#include "frontend/shapes/op_entry.h"

// Shape inference on the client, in three tiers chosen when an op is registered:
//   1. a rule of ours (shape_rules.cpp), for the common case of the ops that matter; it declines the rest;
//   2. torch's C++ structured meta, called directly;
//   3. the dispatcher's Meta key (Python metas: slow), remembered by the exact signature.
// What none of them can tell is known after a round trip.
namespace torch_remote::frontend {

// Which tier answered the last call is counted per op: torch_remote._C.meta_key_calls().
enum class Tier { kRule, kStructured, kMetaKey, kDynamic };
Tier infer(const OpEntry& op, const c10::IValue* args, Inferred& out);

// The arguments with which a multi-tensor op calls `op.single` for its i-th tensor; false if it has no such call.
bool single_arguments(const OpEntry& op, const c10::IValue* args, size_t i, torch::jit::Stack& single);

// In-place and out overloads: raises what is wrong with the arguments, and resizes `out` arguments. Runs the op at the
// Meta key on mirrors of its arguments (one meta storage per real storage) and applies what happened to their sizes to
// the real ones; signatures that changed nothing are remembered. False if there is no meta to run: nothing was checked
// or resized.
bool check_mutation(const OpEntry& op, const c10::IValue* args);

bool is_masked_fill(const OpEntry& op);  // in place

// A Meta tensor with the same metadata.
at::Tensor meta_like(const at::Tensor& tensor);

}  // namespace torch_remote::frontend
