#pragma once

#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "frontend/device/tensor.h"
#include "ir/ops/op_table.h"

// The registered data of an op, and the metadata of a call's results.
namespace torch_remote::frontend {

struct OpEntry;

// Metadata of a tensor result. Strides are in elements.
struct ResultMeta {
  enum class State : uint8_t { kDefined, kUndefined };
  c10::DimVector sizes;
  c10::DimVector strides;
  c10::ScalarType dtype = c10::ScalarType::Float;
  State state = State::kDefined;
};

// The results that alias no argument, with lists flattened. `list_lengths` has the length of each list.
struct Inferred {
  c10::SmallVector<ResultMeta, 2> results;
  c10::SmallVector<uint32_t, 2> list_lengths;

  ResultMeta& add(c10::IntArrayRef sizes, c10::ScalarType dtype);  // contiguous
  ResultMeta& add(c10::IntArrayRef sizes, c10::IntArrayRef strides, c10::ScalarType dtype);
  ResultMeta& add(c10::IntArrayRef sizes, c10::MemoryFormat format, c10::ScalarType dtype);
  void add_undefined();
};

// Returns false if this rule does not cover the call, or if the call is invalid. The next tier (infer.h) then infers
// the call, or raises PyTorch's message. Some rules raise that message themselves. A rule that returns false may leave
// results in `out`.
using ShapeRuleFunction = bool (*)(const OpEntry& op, const c10::IValue* args, Inferred& out);

// Raises if a call is invalid (call_checks.h).
using CallCheck = void (*)(const OpEntry& op, const c10::IValue* args);

struct OpEntry {
  explicit OpEntry(c10::OperatorHandle handle, const ir::OpDesc* desc);

  c10::OperatorHandle handle;
  const ir::OpDesc* desc;
  uint32_t arg_count;
  ShapeRuleFunction rule = nullptr;
  CallCheck check = nullptr;  // for every call
  // for calls that no rule or fast path accepts; rules and fast paths decline invalid calls
  CallCheck check_without_shape_function = nullptr;
  // tier 2: torch's structured meta, or our own one (find_custom_meta); null if there is none
  const c10::KernelFunction* structured = nullptr;
  const OpEntry* functional = nullptr;     // for an in-place or out overload: the op to infer with
  const OpEntry* per_tensor_op = nullptr;  // for a multi-tensor op: the op that CPU calls for each tensor
  uint64_t refused_dtypes = 0;             // bit mask by ScalarType of the dtypes that its kernel does not support
  bool dynamic = false;                    // needs a round trip, unless the argument `size_argument` is given
  int size_argument = -1;                  // index of the argument that has the size of a dynamic result
  bool accepts_cpu_scalars = false;        // accepts 0-dim CPU tensors as operands
  bool fills = false;                      // in place, and writes all of `self` without reading it (fill_, normal_)
  bool one_tensor = false;                 // its only result is a new tensor

  bool has(ir::OpFacts fact) const { return (desc->facts & fact) != 0; }

  // Indices of arguments by name, for the rules; -1 if the op has no argument of that name.
  int dim = -1, keepdim = -1, dtype = -1;

  // The cache of tier 3 (infer.h), and the calls that check_mutation() has accepted. Guarded by `memo_mutex`.
  mutable std::mutex memo_mutex;
  mutable std::unordered_map<std::string, Inferred> memo;
  mutable std::atomic<uint64_t> meta_calls{0};  // calls that reached the dispatcher's Meta key

  // For a custom op: the session of the worker that was last found to have it; 0: none.
  mutable std::atomic<uint64_t> found_in{0};
};

}  // namespace torch_remote::frontend
