#pragma once

#include <string_view>

#include "frontend/shapes/op_entry.h"

// What torch's kernels refuse for their arguments and metadata alone, and neither a shape rule nor torch's meta
// function does: without these checks such a call would fail on the worker, and be told at the next sync. Which op has
// which check says ir/ops/call_checks.toml; texts and types are those of torch's CPU kernels. What only data can tell
// is the worker's to find.
namespace torch_remote::frontend {

enum class CheckWhen : uint8_t {
  kAlways,
  kUnlessRuled,  // not where the op's shape rule answers, or a fast path of in_place.cpp: these decline wrong calls
};

struct CallCheckRow {
  std::string_view op;  // without "aten::", overload and "_": stands for the functional, in-place and out overloads
  CheckWhen when;
  CallCheck check;  // its arguments are the op's, in order; operands are on one device
};

// The row of an op; null if it has none.
const CallCheckRow* find_call_check(const ir::OpDesc& desc);

// The dtypes that the kernel of an overload does not compute in (kernel_dtypes.cpp), as bits.
uint64_t find_refused_dtypes(std::string_view name);

// Raises torch's error if a call would be computed in one of `op.refused_dtypes`; some operand has one.
[[gnu::cold]] void check_kernel_dtype(const OpEntry& op, const c10::IValue* args);

// A call that a multi-tensor op makes for one of its tensors: what is checked of every call of `op.single`, and the
// dtypes that the multi-tensor op refuses itself.
void check_single_call(const OpEntry& op, const c10::IValue* single_args);

// Shorthands of the checks.
inline const at::Tensor& tensor_at(const c10::IValue* args, int i) { return args[i].toTensor(); }
bool is_out(const OpEntry& op);
// The i-th tensor that is written: an argument of an out overload, or `self` of an in-place one; null: there is none.
const at::Tensor* written_at(const OpEntry& op, const c10::IValue* args, int i);
void check_same_dtype(const at::Tensor& a, const at::Tensor& b);  // "expected scalar type ... but found ..."

}  // namespace torch_remote::frontend
