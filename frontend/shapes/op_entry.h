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

// What is known of an op once it is registered, and what a call of it will give.
namespace torch_remote::frontend {

struct OpEntry;

// What a tensor result will be. Strides in elements.
struct ResultMeta {
  enum class State : uint8_t { kDefined, kUndefined };
  c10::DimVector sizes;
  c10::DimVector strides;
  c10::ScalarType dtype = c10::ScalarType::Float;
  State state = State::kDefined;
};

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
  bool dynamic = false;                 // tier 4, but where `sized_by` is given
  int sized_by = -1;                    // the argument that tells how large a dynamic result is
  bool takes_numbers = false;           // 0-dim CPU tensors as operands
  bool fills = false;                   // in-place, and nothing can be wrong with its arguments' shapes
  bool one_tensor = false;              // its only result is a new tensor

  bool has(ir::OpFacts fact) const { return (desc->facts & fact) != 0; }

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

}  // namespace torch_remote::frontend
