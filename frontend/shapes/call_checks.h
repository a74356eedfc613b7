#pragma once

#include <string_view>

#include "frontend/shapes/op_entry.h"

// Checks of arguments and metadata that torch's kernels make, but neither a shape function nor torch's meta function
// does. Without them such a call would fail on the worker, and the error would be raised only at the next sync. The
// file ir/ops/call_checks.toml maps ops to checks. Messages and types of errors are those of torch's CPU kernels. The
// worker finds errors that depend on data.
namespace torch_remote::frontend {

enum class CheckWhen : uint8_t {
  kAlways,
  // only if neither the op's shape function nor a fast path of in_place.cpp accepts the call; both decline
  // invalid calls
  kWithoutShapeFunction,
};

struct CallCheckRow {
  std::string_view op;  // without "aten::", overload and "_"; valid for the functional, in-place and out overloads
  CheckWhen when;
  CallCheck check;  // takes the op's arguments, in order; operands are on one device
};

// The row of an op, or null if it has none.
const CallCheckRow* find_call_check(const ir::OpDesc& desc);

// The dtypes that the overload's kernel does not support, as a bit mask by ScalarType (kernel_dtypes.cpp).
uint64_t find_refused_dtypes(std::string_view name);

// Raises torch's error if the call would compute in one of `op.refused_dtypes`. An operand, a number or an argument
// `dtype` may lead to such a dtype.
[[gnu::cold]] void check_kernel_dtype(const OpEntry& op, const c10::IValue* args);

// Checks a call of `op.per_tensor_op` that a multi-tensor op makes for one of its tensors. It makes the checks of every
// such call, and refuses the dtypes that the multi-tensor op itself refuses.
void check_single_call(const OpEntry& op, const c10::IValue* single_args);

// Helpers of the checks.
inline const at::Tensor& tensor_at(const c10::IValue* args, int i) { return args[i].toTensor(); }
bool is_out(const OpEntry& op);
// The i-th tensor that is written: an argument of an out overload, or `self` of an in-place one. Null if there is none.
const at::Tensor* written_at(const OpEntry& op, const c10::IValue* args, int i);
void check_same_dtype(const at::Tensor& a, const at::Tensor& b);  // "expected scalar type ... but found ..."

}  // namespace torch_remote::frontend
