#pragma once

#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <memory>
#include <string>
#include <unordered_map>

#include "frontend/record/recorder.h"
#include "ir/op_table.h"

// Shape inference on the client, in three tiers chosen when an op is registered:
//   1. a rule of ours (shape_rules.cpp), for the common case of the ops that matter; it declines the rest;
//   2. torch's C++ structured meta, called directly;
//   3. the dispatcher's Meta key (Python metas: slow), remembered by the exact signature.
// What none of them can tell is known after a round trip.
namespace torch_remote::frontend {

struct OpEntry;

// The results that alias no argument, lists flattened.
struct Inferred {
  c10::SmallVector<ResultMeta, 2> results;
  c10::SmallVector<uint32_t, 2> list_lengths;

  ResultMeta& add(c10::IntArrayRef sizes, c10::ScalarType dtype);  // contiguous
  ResultMeta& add(c10::IntArrayRef sizes, c10::IntArrayRef strides, c10::ScalarType dtype);
  ResultMeta& add(c10::IntArrayRef sizes, c10::MemoryFormat format, c10::ScalarType dtype);
  void add_undefined();
};

// False: this rule does not cover the call (also when the call is wrong: a later tier raises PyTorch's own message).
using ShapeRuleFunction = bool (*)(const OpEntry& op, const c10::IValue* args, Inferred& out);

// Null if this rule has no function of its own.
ShapeRuleFunction find_shape_rule(const ir::OpDesc& desc);

// Of `_cudnn_rnn` and its gradient (rnn.cpp).
bool rnn_shapes(const OpEntry& op, const c10::IValue* args, Inferred& out);
bool rnn_backward_shapes(const OpEntry& op, const c10::IValue* args, Inferred& out);

// Raises what is wrong with a call (call_checks.h).
using CallCheck = void (*)(const OpEntry& op, const c10::IValue* args);

struct OpEntry {
  explicit OpEntry(c10::OperatorHandle handle, const ir::OpDesc* desc);

  c10::OperatorHandle handle;
  const ir::OpDesc* desc;
  uint32_t arg_count;
  ShapeRuleFunction rule = nullptr;
  CallCheck check = nullptr;          // of every call
  CallCheck check_unruled = nullptr;  // of calls that no rule or fast path accepts: these decline wrong ones
  const c10::KernelFunction* structured = nullptr;
  const OpEntry* functional = nullptr;  // of an in-place or out overload: what to infer with
  const OpEntry* single = nullptr;      // of a multi-tensor op: what CPU calls for each tensor
  uint64_t refused_dtypes = 0;          // by ScalarType: those that its kernel does not compute in
  bool dynamic = false;                 // always tier 4
  bool scalars_allowed = false;         // takes 0-dim CPU tensors
  bool uploads_allowed = false;         // takes CPU tensors (indices), which are uploaded
  bool fills = false;                   // in-place, and nothing can be wrong with its arguments' shapes
  bool one_tensor = false;              // its only result is a new tensor
  bool index_put = false;               // index_put_ and its variants
  bool wraps_number = false;            // elementwise, and makes its number an operand of rank 0
  bool overlaps = false;                // in-place, and may write an element twice
  bool resizes = false;                 // in-place, and gives `self` the size of its functional overload's result
  bool masked_fill = false;             // in-place masked_fill_
  bool bumps_versions = false;          // multi-tensor, in-place: counts versions as its single-tensor ops do

  // Whose memory format CPU's kernel gives to the first result, whatever the meta says; -1: the meta is right.
  int format_of = -1;

  // Positions of arguments by name, for the rules; -1: the op has none of that name.
  int dim = -1, keepdim = -1, dtype = -1;

  // Of ops registered after this package was imported.
  enum class Known : uint8_t { kNotAsked, kYes, kNo };
  std::atomic<Known> worker_has{Known::kNotAsked};

  // Tier 3's memory. Guarded by `memo_mutex`.
  mutable std::mutex memo_mutex;
  mutable std::unordered_map<std::string, Inferred> memo;
  mutable std::atomic<uint64_t> meta_calls{0};  // calls that reached the dispatcher's Meta key
};

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

// A Meta tensor with the same metadata.
at::Tensor meta_like(const at::Tensor& tensor);

// Sizes, strides and dtype of a TensorIterator result over these operands: broadcast, and the operands' permutation
// kept (TensorIteratorBase::reorder_dimensions). False if the sizes do not broadcast. `number`: there is also a number,
// which torch makes an operand of rank 0.
bool broadcast_result(c10::ArrayRef<const at::Tensor*> operands, ResultMeta& out, bool number = false);

}  // namespace torch_remote::frontend
