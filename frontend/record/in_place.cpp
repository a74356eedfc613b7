#include "frontend/record/in_place.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/native/Resize.h>
#include <ATen/native/TypeProperties.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/result_type.h>

#include <algorithm>

#include "frontend/shapes/call_checks.h"
#include "frontend/shapes/write_checks.h"

namespace torch_remote::frontend {
namespace {

using c10::IValue;
using ir::ArgKind;
using torch::jit::Stack;

// The checks of TensorIterator for an in-place op.
void check_in_place(const at::Tensor& self, const ResultMeta& result) {
  TORCH_CHECK(self.sizes().equals(result.sizes), "output with shape ", self.sizes(),
              " doesn't match the broadcast shape ", c10::IntArrayRef(result.sizes));
  TORCH_CHECK(c10::canCast(result.dtype, self.scalar_type()), "result type ", result.dtype,
              " can't be cast to the desired output type ", self.scalar_type());
}

// Whether the number is neither complex nor bool; subtraction refuses bools.
bool is_real(const IValue& number) { return number.isDouble() || number.isInt(); }

bool has_complex_number(const OpEntry& op, const IValue* args) {
  return std::any_of(args, args + op.arg_count, [](const IValue& arg) { return arg.isComplexDouble(); });
}

// True for the common case, which needs no checks: float tensors of equal sizes that share no memory, and real numbers.
bool needs_no_foreach_checks(const OpEntry& op, const IValue* args, size_t i, const at::Tensor& self) {
  if (self.scalar_type() != c10::ScalarType::Float || !self.is_non_overlapping_and_dense()) return false;
  for (uint32_t a = 1; a < op.arg_count; ++a) {
    const ArgKind kind = op.desc->args[a].kind;
    if (kind == ArgKind::kScalar && !is_real(args[a])) return false;
    if (kind == ArgKind::kScalarList && !is_real(args[a].toListRef()[i])) return false;
    if (kind != ArgKind::kTensor && kind != ArgKind::kTensorList) continue;
    const bool list = kind == ArgKind::kTensorList;
    const at::Tensor& other = list ? args[a].toListRef()[i].toTensor() : args[a].toTensor();
    if (other.scalar_type() != c10::ScalarType::Float) return false;
    if (list ? !other.sizes().equals(self.sizes()) : other.dim() > 0) return false;
    if (other.storage().is_alias_of(self.storage()) && !other.is_same(self)) return false;
  }
  return true;
}

// Checks an in-place multi-tensor op. On other devices it is a composite of in-place ops, which check dtypes and
// overlaps and bump version counters, so this function does the same.
void check_foreach(const OpEntry& op, const IValue* args) {
  const auto written = args[0].toListRef();
  for (uint32_t a = 1; a < op.arg_count; ++a) {
    if (args[a].isList() && args[a].toListRef().size() != written.size()) {
      check_mutation(op, args);  // raises
      return;
    }
  }
  Stack single;
  for (size_t i = 0; i < written.size(); ++i) {
    const at::Tensor& self = written[i].toTensor();
    if (!needs_no_foreach_checks(op, args, i, self) && single_arguments(op, args, i, single)) {
      check_single_call(op, single.data());
      check_in_place_call(*op.per_tensor_op, single.data());
    }
    auto* impl = self.unsafeGetTensorImpl();
    if (!impl->is_inference()) impl->bump_version();
  }
}

// Whether it is masked_fill_ as scripts use it: a bool mask that broadcasts to `self`, and a number. If not, torch's
// meta kernel checks the call. Raises if the dtype cannot hold the number.
bool is_common_masked_fill(const IValue* args) {
  const at::Tensor& self = args[0].toTensor();
  const at::Tensor& mask = args[1].toTensor();
  if (args[2].isTensor() || !is_remote(mask) || mask.scalar_type() != c10::ScalarType::Bool ||
      !self.is_non_overlapping_and_dense() || !at::is_expandable_to(mask.sizes(), self.sizes()) ||
      self.storage().is_alias_of(mask.storage())) {
    return false;
  }
  check_fits(self.scalar_type(), args[2].toScalar());
  return true;
}

// Whether index_put_ has operands that do not overlap. The op's call check has compared dtypes and sizes.
bool is_common_index_put(const IValue* args) {
  const at::Tensor& self = args[0].toTensor();
  const at::Tensor& values = args[2].toTensor();
  const auto apart = [&](const at::Tensor& t) { return !is_remote(t) || !self.storage().is_alias_of(t.storage()); };
  if (!apart(values) || !self.is_non_overlapping_and_dense()) return false;
  for (const IValue& index : args[1].toListRef()) {
    if (!index.isNone() && index.toTensor().defined() && !apart(index.toTensor())) return false;
  }
  return true;
}

// Whether torch's CPU kernel implements the op as a copy of `self` to itself, which skips the overlap check.
bool is_copied(const OpEntry& op, const at::Tensor& self) {
  if (op.has(ir::kFactNoopForIntegers)) return c10::isIntegralType(self.scalar_type(), true);
  return op.has(ir::kFactNoopForReals) && !self.is_complex();
}

// Raises if the tensors of stack(tensors, dim, out) cannot be cast to the dtype of `out`. torch's kernel calls cat.out,
// whose error depends on the version of torch, so this function lets cat.out raise it.
void check_stack_dtype(const OpEntry& op, const IValue* args) {
  if (op.functional == nullptr || op.functional->desc->shape_function != ir::ShapeFunction::kStack) return;
  const auto tensors = args[0].toListRef();
  if (tensors.empty()) return;
  at::native::ResultTypeState state = {};
  for (const IValue& item : tensors) state = at::native::update_result_type_state(item.toTensor(), state);
  const c10::ScalarType dtype = at::native::result_type(state);
  const c10::ScalarType wanted = args[op.functional->arg_count].toTensor().scalar_type();
  if (c10::canCast(dtype, wanted)) return;
  const at::Tensor given = at::detail::empty_cpu({0}, dtype);
  at::Tensor out = at::detail::empty_cpu({0}, wanted);
  at::cat_out(out, {given, given});
}

// Raises if a result of this dtype may not be written to `out`. Out overloads that torch generated convert nothing.
void check_out_dtype(const OpEntry& op, c10::ScalarType dtype, const at::Tensor& out) {
  if (op.handle.hasTag(at::Tag::generated)) {
    TORCH_CHECK(dtype == out.scalar_type(), "Expected out tensor to have dtype ", c10::scalarTypeToTypeMeta(dtype),
                ", but got ", out.dtype(), " instead");
  }
  TORCH_CHECK(c10::canCast(dtype, out.scalar_type()), "result type ", dtype,
              " can't be cast to the desired output type ", out.scalar_type());
}

}  // namespace

void check_in_place_call(const OpEntry& op, const IValue* args) {
  if (!args[0].isTensor()) {
    if (op.has(ir::kFactPerTensor)) check_foreach(op, args);
    return;
  }
  const at::Tensor& self = args[0].toTensor();
  const OpEntry* functional = op.functional;
  const bool pointwise = op.desc->family == ir::Family::kPointwise && functional != nullptr;
  if ((pointwise || op.fills) && !op.has(ir::kFactSkipsOverlapCheck) && !self.is_non_overlapping_and_dense() &&
      !is_copied(op, self)) {
    at::assert_no_internal_overlap(self);
  }
  if (op.fills && op.arg_count == 2) {  // fill_, and ops whose only argument is a generator
    // For a tensor of one floating-point element, the CPU kernel takes any real number.
    const bool number = op.desc->args[1].kind == ArgKind::kScalar;  // IValue::isScalar() is false from 2^63 on
    const bool real = number && !args[1].toScalar().isComplex();
    const bool any = real && self.numel() == 1 && c10::isFloatingType(self.scalar_type());
    if (number && !any) check_fits(self.scalar_type(), args[1].toScalar());
    TORCH_CHECK(!args[1].isTensor() || args[1].toTensor().dim() == 0,
                "fill_ only supports 0-dimension value tensor but got tensor with ", args[1].toTensor().dim(),
                " dimensions.");
  }
  if (op.fills || (is_masked_fill(op) && is_common_masked_fill(args)) ||
      (op.has(ir::kFactAcceptsCpuIndices) && is_common_index_put(args))) {
    return;
  }
  Inferred inferred;
  if (!pointwise || functional->rule == nullptr || !functional->rule(*functional, args, inferred) ||
      inferred.results.size() != 1) {
    check_mutation(op, args);
    // torch's meta kernels of mul_.Scalar and others accept a complex number for a real tensor.
    if (!pointwise || self.is_complex() || !has_complex_number(op, args)) return;
    if (infer(*functional, args, inferred) == Tier::kDynamic || inferred.results.size() != 1) return;
  }
  check_in_place(self, inferred.results[0]);
  for (uint32_t i = 1; i < op.arg_count; ++i) {
    if (args[i].isTensor() && args[i].toTensor().defined() && is_remote(args[i].toTensor())) {
      at::assert_no_partial_overlap(self, args[i].toTensor());
    }
  }
}

bool resize_out(const OpEntry& op, const IValue* args) {
  check_stack_dtype(op, args);
  const OpEntry* functional = op.functional;
  Inferred inferred;
  if (functional == nullptr || functional->rule == nullptr || op.structured != nullptr ||
      op.desc->family == ir::Family::kPointwise || !functional->rule(*functional, args, inferred) ||
      inferred.results.size() != op.arg_count - functional->arg_count) {
    return false;
  }
  for (size_t i = 0; i < inferred.results.size(); ++i) {
    const ResultMeta& result = inferred.results[i];
    const IValue& out = args[functional->arg_count + i];
    if (!out.isTensor() || result.state != ResultMeta::State::kDefined) return false;
  }
  for (size_t i = 0; i < inferred.results.size(); ++i) {
    const ResultMeta& result = inferred.results[i];
    const at::Tensor& out = args[functional->arg_count + i].toTensor();
    check_out_dtype(op, result.dtype, out);
    at::native::resize_output(out, result.sizes);
  }
  return true;
}

bool converts_result(const OpEntry& op, const IValue* args) {
  const OpEntry* functional = op.functional;
  if (functional == nullptr || op.desc->family != ir::Family::kPointwise)
    return false;     // reductions compute in the dtype of `out`
  bool alike = true;  // all tensors have the same floating-point dtype, and then so does the result
  for (uint32_t i = functional->arg_count; i < op.arg_count; ++i) {
    if (!args[i].isTensor()) return false;
    const c10::ScalarType dtype = args[i].toTensor().scalar_type();
    for (uint32_t j = 0; j < functional->arg_count; ++j) {
      alike = alike &&
              (!args[j].isTensor() || !args[j].toTensor().defined() || args[j].toTensor().scalar_type() == dtype) &&
              !args[j].isList();
    }
    alike = alike && c10::isFloatingType(dtype);
  }
  Inferred inferred;
  if (alike || infer(*functional, args, inferred) == Tier::kDynamic ||
      inferred.results.size() != op.arg_count - functional->arg_count) {
    return false;
  }
  for (size_t i = 0; i < inferred.results.size(); ++i) {
    const ResultMeta& result = inferred.results[i];
    if (result.state == ResultMeta::State::kDefined &&
        result.dtype != args[functional->arg_count + i].toTensor().scalar_type()) {
      return true;
    }
  }
  return false;
}

bool writes_shared_elements(const OpEntry& op, const IValue* args) {
  if (op.functional == nullptr || ir::writes_by_strides(*op.desc)) return false;
  const auto shares = [](const at::Tensor& out) {
    if (out.is_non_overlapping_and_dense() || out.numel() == 0) return false;
    int64_t reach = 1;
    for (int64_t d = 0; d < out.dim(); ++d) reach += (out.size(d) - 1) * out.stride(d);
    return out.numel() > reach;
  };
  for (uint32_t i = op.functional->arg_count; i < op.arg_count; ++i) {
    if (args[i].isTensor() && shares(args[i].toTensor())) return true;
    if (!args[i].isTensorList()) continue;
    for (const IValue& out : args[i].toListRef()) {
      if (shares(out.toTensor())) return true;
    }
  }
  return false;
}

bool run_through_functional(const OpEntry& op, Stack& stack, RecordCall record) {
  if (op.functional == nullptr) return false;
  const size_t base = stack.size() - op.arg_count;
  Stack inner(stack.begin() + static_cast<ptrdiff_t>(base),
              stack.begin() + static_cast<ptrdiff_t>(base + op.functional->arg_count));
  record(*op.functional, inner);
  c10::SmallVector<IValue, 4> outs;
  for (uint32_t i = op.functional->arg_count; i < op.arg_count; ++i) outs.push_back(stack[base + i]);
  TORCH_CHECK(inner.size() == outs.size(), "remote: '", op.desc->name,
              "' cannot be recorded; use the overload without out=");
  const auto give = [&](const at::Tensor& result, const at::Tensor& out) {
    check_out_dtype(op, result.scalar_type(), out);
    at::native::resize_output(out, result.sizes());
    out.copy_(result);
  };
  for (size_t i = 0; i < outs.size(); ++i) {
    if (!inner[i].isTensorList()) {
      give(inner[i].toTensor(), outs[i].toTensor());
      continue;
    }
    const std::vector<at::Tensor> results = inner[i].toTensorVector(), list = outs[i].toTensorVector();
    TORCH_CHECK(results.size() == list.size(), "out= has ", list.size(), " tensors, but the result has ",
                results.size());
    for (size_t j = 0; j < results.size(); ++j) give(results[j], list[j]);
  }
  stack.resize(base);
  if (op.desc->results.empty()) return true;  // foreach overloads return nothing
  for (IValue& out : outs) stack.push_back(std::move(out));
  return true;
}

bool run_with_resize(const OpEntry& op, Stack& stack, RecordCall record) {
  const size_t base = stack.size() - op.arg_count;
  Inferred inferred;
  if (op.functional == nullptr || infer(*op.functional, &stack[base], inferred) == Tier::kDynamic) return false;
  const at::Tensor self = stack[base].toTensor();
  if (inferred.results.size() != 1 || self.sizes().equals(inferred.results[0].sizes)) return false;
  Stack inner(stack.begin() + static_cast<ptrdiff_t>(base), stack.end());
  record(*op.functional, inner);
  self.resize_(inner[0].toTensor().sizes());
  self.copy_(inner[0].toTensor());
  stack.resize(base);
  stack.push_back(self);
  return true;
}

}  // namespace torch_remote::frontend
