#include "frontend/shapes/shape_rules.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/native/TypeProperties.h>
#include <ATen/ops/result_type.h>
#include <c10/core/MemoryFormat.h>

#include <algorithm>
#include <cmath>
#include <span>

#include "ir/ops/op_table_generated.h"

namespace torch_remote::frontend {
ResultMeta& Inferred::add(c10::IntArrayRef sizes, c10::ScalarType dtype) {
  ResultMeta& result = results.emplace_back();
  result.sizes.assign(sizes.begin(), sizes.end());
  contiguous_strides(result.sizes, result.strides);
  result.dtype = dtype;
  return result;
}

ResultMeta& Inferred::add(c10::IntArrayRef sizes, c10::IntArrayRef strides, c10::ScalarType dtype) {
  ResultMeta& result = results.emplace_back();
  result.sizes.assign(sizes.begin(), sizes.end());
  result.strides.assign(strides.begin(), strides.end());
  result.dtype = dtype;
  return result;
}

ResultMeta& Inferred::add(c10::IntArrayRef sizes, c10::MemoryFormat format, c10::ScalarType dtype) {
  if (format == c10::MemoryFormat::ChannelsLast) return add(sizes, c10::get_channels_last_strides_2d(sizes), dtype);
  if (format == c10::MemoryFormat::ChannelsLast3d) return add(sizes, c10::get_channels_last_strides_3d(sizes), dtype);
  return add(sizes, dtype);
}

void Inferred::add_undefined() { results.emplace_back().state = ResultMeta::State::kUndefined; }

namespace {

using c10::IntArrayRef;
using c10::IValue;
using c10::ScalarType;
using ir::ArgKind;

// Applies TensorIteratorBase::reorder_dimensions to operands that are broadcast to `out.sizes`, and sets strides in
// that order.
void permuted_strides(c10::ArrayRef<const at::Tensor*> operands, ResultMeta& out) {
  const int64_t rank = static_cast<int64_t>(out.sizes.size());
  const auto stride_of = [&](const at::Tensor& t, int64_t dim) -> int64_t {
    const int64_t d = dim - (rank - t.dim());
    if (d < 0 || (t.size(d) == 1 && out.sizes[dim] != 1)) return 0;
    return t.stride(d);
  };
  c10::SmallVector<int64_t, 8> perm(rank);  // innermost first
  for (int64_t i = 0; i < rank; ++i) perm[i] = rank - 1 - i;
  // 1: dim0 must come after dim1, -1: it must not, 0: undecided.
  const auto compare = [&](int64_t dim0, int64_t dim1) {
    for (const at::Tensor* t : operands) {
      const int64_t s0 = stride_of(*t, dim0);
      const int64_t s1 = stride_of(*t, dim1);
      if (s0 == 0 || s1 == 0) continue;
      if (s0 < s1) return -1;
      if (s0 > s1) return 1;
      if (out.sizes[dim0] > out.sizes[dim1]) return 1;
    }
    return 0;
  };
  for (int64_t i = 1; i < rank; ++i) {
    int64_t dim1 = i;
    for (int64_t dim0 = i - 1; dim0 >= 0; --dim0) {
      const int comparison = compare(perm[dim0], perm[dim1]);
      if (comparison > 0) {
        std::swap(perm[dim0], perm[dim1]);
        dim1 = dim0;
      } else if (comparison < 0) {
        break;
      }
    }
  }
  bool natural = true;
  for (int64_t i = 0; i < rank; ++i) natural &= perm[i] == rank - 1 - i;
  if (natural) {
    contiguous_strides(out.sizes, out.strides);
    return;
  }
  out.strides.resize(rank);
  int64_t next = 1;
  for (int64_t i = 0; i < rank; ++i) {
    out.strides[perm[i]] = next;
    next *= out.sizes[perm[i]];
  }
}

}  // namespace

bool broadcast_result(c10::ArrayRef<const at::Tensor*> operands, ResultMeta& out, bool number) {
  const at::Tensor& first = *operands[0];
  out.sizes.assign(first.sizes().begin(), first.sizes().end());
  bool same = !number || first.dim() == 0;
  for (const at::Tensor* t : operands.slice(1)) {
    const IntArrayRef sizes = t->sizes();
    if (sizes.equals(out.sizes)) continue;
    same = false;
    if (sizes.size() > out.sizes.size()) out.sizes.insert(out.sizes.begin(), sizes.size() - out.sizes.size(), 1);
    const size_t shift = out.sizes.size() - sizes.size();
    for (size_t i = 0; i < sizes.size(); ++i) {
      int64_t& dim = out.sizes[shift + i];
      if (dim == 1) {
        dim = sizes[i];
      } else if (sizes[i] != 1 && sizes[i] != dim) {
        return false;
      }
    }
  }
  if (same) {
    bool contiguous = true;
    for (const at::Tensor* t : operands) contiguous &= t->is_contiguous();
    if (contiguous) {
      contiguous_strides(out.sizes, out.strides);
      return true;
    }
    bool last = true, dense = true;
    for (const at::Tensor* t : operands) {
      last &= t->is_contiguous(c10::MemoryFormat::ChannelsLast);
      dense &= t->is_non_overlapping_and_dense();
    }
    if (last) {
      const auto strides = c10::get_channels_last_strides_2d(out.sizes);
      out.strides.assign(strides.begin(), strides.end());
      return true;
    }
    for (const at::Tensor* t : operands) dense &= t->strides().equals(first.strides());
    if (dense) {
      out.strides.assign(first.strides().begin(), first.strides().end());
      return true;
    }
  }
  permuted_strides(operands, out);
  return true;
}

bool like_first(const OpEntry&, const c10::IValue* args, Inferred& out) {
  const at::Tensor& self = args[0].toTensor();
  if (!is_remote(self)) return false;
  if (self.is_non_overlapping_and_dense()) {
    out.add(self.sizes(), self.strides(), self.scalar_type());
  } else {
    const auto strides = at::infer_dense_strides(self.sizes(), self.strides());
    out.add(self.sizes(), strides, self.scalar_type());
  }
  return true;
}

bool add_broadcast(c10::ArrayRef<const at::Tensor*> operands, ScalarType dtype, Inferred& out, bool number) {
  ResultMeta& result = out.results.emplace_back();
  result.dtype = dtype;
  return broadcast_result(operands, result, number);
}

namespace {

int scalar_category(const c10::IValue& v) {  // 0 bool, 1 int, 2 float, 3 complex
  if (v.isDouble()) return 2;
  if (v.isInt()) return 1;
  if (v.isBool()) return 0;
  if (v.isNone()) return 0;
  const auto s = v.toScalar();
  return s.isComplex() ? 3 : s.isFloatingPoint() ? 2 : s.isBoolean() ? 0 : 1;
}

int dtype_category(ScalarType t) {
  return c10::isComplexType(t) ? 3 : c10::isFloatingType(t) ? 2 : t == ScalarType::Bool ? 0 : 1;
}

// Whether the tensor is a bool among numbers: subtraction refuses it.
bool is_mixed_bool(const at::Tensor& t, ScalarType dtype) {
  return t.scalar_type() == ScalarType::Bool && dtype != ScalarType::Bool;
}

// Collects the tensor operands. Returns the common dtype if no promotion is needed, otherwise Undefined. All operands
// of rank > 0 must have that dtype. All operands of rank 0 must have it or be of no higher category.
ScalarType collect(const OpEntry& op, const IValue* args, c10::SmallVector<const at::Tensor*, 4>& operands) {
  ScalarType dtype = ScalarType::Undefined;
  const auto& descs = op.desc->args;
  for (size_t i = 0; i < descs.size(); ++i) {
    if (descs[i].role != ir::ArgRole::kOperand) continue;
    if (descs[i].kind == ArgKind::kOptionalTensor && args[i].isNone()) continue;
    if (descs[i].kind != ArgKind::kTensor && descs[i].kind != ArgKind::kOptionalTensor) return ScalarType::Undefined;
    const at::Tensor& t = args[i].toTensor();
    if (!t.defined()) continue;
    operands.push_back(&t);
    if (t.dim() == 0 && !(is_remote(t) && op.arg_count == 1)) continue;
    if (dtype == ScalarType::Undefined) {
      dtype = t.scalar_type();
    } else if (dtype != t.scalar_type()) {
      return ScalarType::Undefined;
    }
  }
  if (operands.empty()) return ScalarType::Undefined;
  if (dtype == ScalarType::Undefined) {  // all operands have rank 0
    for (const at::Tensor* t : operands) {
      if (t->unsafeGetTensorImpl()->is_wrapped_number()) continue;
      if (dtype != ScalarType::Undefined && dtype != t->scalar_type()) return ScalarType::Undefined;
      dtype = t->scalar_type();
    }
    if (dtype == ScalarType::Undefined) return dtype;
  }
  const int category = dtype_category(dtype);
  for (const at::Tensor* t : operands) {
    if (is_mixed_bool(*t, dtype)) return ScalarType::Undefined;
    if (t->dim() == 0 && t->scalar_type() != dtype && dtype_category(t->scalar_type()) > category) {
      return ScalarType::Undefined;
    }
    if (t->dim() == 0 && t->scalar_type() != dtype && !t->unsafeGetTensorImpl()->is_wrapped_number() &&
        dtype_category(t->scalar_type()) == category) {
      // Two tensors of rank 0 and the same category, not wrapped, need a promotion, unless an operand of rank > 0
      // decides.
      bool decided = false;
      for (const at::Tensor* other : operands) decided |= other->dim() > 0;
      if (!decided) return ScalarType::Undefined;
    }
  }
  for (size_t i = 0; i < descs.size(); ++i) {
    if (descs[i].kind != ArgKind::kScalar) continue;
    if (scalar_category(args[i]) > category || (args[i].isBool() && category != 0)) return ScalarType::Undefined;
  }
  return dtype;
}

bool all_remote_or_scalar(c10::ArrayRef<const at::Tensor*> operands) {
  for (const at::Tensor* t : operands) {
    if (is_remote(*t)) return true;
  }
  return false;
}

// The common case: two contiguous float tensors of one dtype and equal sizes, and perhaps a real number.
bool is_same_shape_float_pair(const OpEntry& op, const IValue* args, Inferred& out) {
  if (op.arg_count < 2 || op.arg_count > 3 || op.has(ir::kFactWrapsNumber) || !args[0].isTensor() ||
      !args[1].isTensor())
    return false;
  if (op.arg_count == 3 && !args[2].isInt() && !args[2].isDouble()) return false;
  const at::Tensor& a = args[0].toTensor();
  const at::Tensor& b = args[1].toTensor();
  if (!a.defined() || !b.defined() || !is_remote(a) || !is_remote(b)) return false;
  if (a.dtype() != b.dtype() || !is_standard_float(a.scalar_type())) return false;
  if (!a.sizes().equals(b.sizes()) || !a.is_contiguous() || !b.is_contiguous()) return false;
  out.add(a.sizes(), a.scalar_type());
  return true;
}

bool pointwise(const OpEntry& op, const IValue* args, Inferred& out) {
  c10::SmallVector<const at::Tensor*, 4> operands;
  const ScalarType dtype = collect(op, args, operands);
  return is_standard_float(dtype) && all_remote_or_scalar(operands) &&
         add_broadcast(operands, dtype, out, op.has(ir::kFactWrapsNumber));
}

// lerp: no promotion.
bool lerp(const OpEntry& op, const IValue* args, Inferred& out) {
  const ScalarType dtype = args[0].toTensor().scalar_type();
  for (uint32_t i = 1; i < op.arg_count; ++i) {
    if (args[i].isTensor() && args[i].toTensor().scalar_type() != dtype) return false;
  }
  return pointwise(op, args, out);
}

// add, sub, mul, bitwise ops and similar ones: integers stay integers.
bool pointwise_any(const OpEntry& op, const IValue* args, Inferred& out) {
  if (is_same_shape_float_pair(op, args, out)) return true;
  c10::SmallVector<const at::Tensor*, 4> operands;
  const ScalarType dtype = collect(op, args, operands);
  return dtype != ScalarType::Undefined && dtype != ScalarType::Bool && all_remote_or_scalar(operands) &&
         add_broadcast(operands, dtype, out, op.has(ir::kFactWrapsNumber));
}

// CPU kernels first convert operands to one dtype. The converted copies are dense, which may change the result's
// strides. So this function replaces operands that would be converted by stand-ins with these strides, stored in
// `copies`.
template <class Operands>
void convert_operands(Operands& operands, ScalarType dtype, c10::SmallVector<at::Tensor, 2>& copies) {
  copies.reserve(operands.size());
  for (const at::Tensor*& t : operands) {
    if (t->scalar_type() == dtype || t->dim() == 0 || t->is_non_overlapping_and_dense()) continue;
    t = &copies.emplace_back(
        at::detail::empty_strided_meta(t->sizes(), at::infer_dense_strides(t->sizes(), t->strides()), dtype));
  }
}

// Promotes operands of several dtypes like torch, for ops without a structured meta.
bool promoted(const OpEntry& op, const IValue* args, Inferred& out) {
  if (pointwise_any(op, args, out)) return true;
  if (op.structured != nullptr) return false;
  out.results.clear();
  c10::SmallVector<const at::Tensor*, 4> operands;
  at::native::ResultTypeState state;
  for (size_t i = 0; i < op.desc->args.size(); ++i) {
    const ArgKind kind = op.desc->args[i].kind;
    if (kind == ArgKind::kTensor) {
      operands.push_back(&args[i].toTensor());
      state = at::native::update_result_type_state(*operands.back(), state);
    } else if (kind == ArgKind::kScalar && i < 2) {  // later numbers are alpha
      state = at::native::update_result_type_state(args[i].toScalar(), state);
    }
  }
  const ScalarType dtype = at::native::result_type(state);
  if (dtype == ScalarType::Bool || c10::isComplexType(dtype)) return false;
  for (size_t i = 2; i < op.desc->args.size(); ++i) {
    if (op.desc->args[i].kind == ArgKind::kScalar && scalar_category(args[i]) > dtype_category(dtype)) return false;
  }
  if (!all_remote_or_scalar(operands)) return false;
  c10::SmallVector<at::Tensor, 2> copies;
  convert_operands(operands, dtype, copies);
  return add_broadcast(operands, dtype, out, op.has(ir::kFactWrapsNumber));
}

// hardtanh(self, min_val, max_val): the result is made by empty_like. It has the strides of `self`, also in dims of
// size 1. For integers the kernel truncates the limits.
bool like_number(const OpEntry& op, const IValue* args, Inferred& out) {
  const ScalarType dtype = args[0].toTensor().scalar_type();
  if (dtype == ScalarType::Byte) {
    TORCH_CHECK(args[1].toScalar().toLong() >= 0 && args[2].toScalar().toLong() >= 0,
                "cannot do hardtanh on an unsigned type with negative limits");
  }
  return dtype != ScalarType::Bool && !c10::isComplexType(dtype) && like_first(op, args, out);
}

bool like_float(const OpEntry& op, const IValue* args, Inferred& out) {
  const ScalarType dtype = args[0].toTensor().scalar_type();
  if (c10::isComplexType(dtype) || !like_first(op, args, out)) return false;
  if (c10::isIntegralType(dtype, true)) out.results[0].dtype = c10::get_default_dtype_as_scalartype();
  return true;
}

// angle of complex numbers: the CPU kernel resizes an empty result, so the result is always contiguous.
bool angle(const OpEntry&, const IValue* args, Inferred& out) {
  const at::Tensor& self = args[0].toTensor();
  if (!self.is_complex()) return false;
  out.add(self.sizes(), c10::toRealValueType(self.scalar_type()));
  return true;
}

// frexp(self) -> mantissa, exponent
bool frexp(const OpEntry& op, const IValue* args, Inferred& out) {
  if (!is_standard_float(args[0].toTensor().scalar_type()) || !like_first(op, args, out)) return false;
  const ResultMeta mantissa = out.results[0];
  out.add(mantissa.sizes, mantissa.strides, ScalarType::Int);
  return true;
}

// gelu(self, approximate) and its gradient.
template <int kApproximate>
bool gelu(const OpEntry& op, const IValue* args, Inferred& out) {
  const std::string_view name = args[kApproximate].toStringView();
  return (name == "none" || name == "tanh") && pointwise(op, args, out);
}

// clamp(self, min, max): at least one bound is given.
bool clamp(const OpEntry& op, const IValue* args, Inferred& out) {
  return !(args[1].isNone() && args[2].isNone()) && pointwise(op, args, out);
}

// addcdiv refuses to divide integers by integers.
bool addcdiv(const OpEntry& op, const IValue* args, Inferred& out) {
  return !(c10::isIntegralType(args[1].toTensor().scalar_type(), true) &&
           c10::isIntegralType(args[2].toTensor().scalar_type(), true)) &&
         pointwise(op, args, out);
}

template <bool kComplex>  // whether the op compares complex numbers
bool comparison(const OpEntry& op, const IValue* args, Inferred& out) {
  c10::SmallVector<const at::Tensor*, 4> operands;
  for (size_t i = 0; i < op.desc->args.size(); ++i) {
    if (op.desc->args[i].kind == ArgKind::kTensor) operands.push_back(&args[i].toTensor());
  }
  bool alike = true;
  for (const at::Tensor* t : operands) {
    if (!kComplex && c10::isComplexType(t->scalar_type())) return false;
    alike = alike && t->scalar_type() == operands[0]->scalar_type();
  }
  c10::SmallVector<at::Tensor, 2> copies;
  if (!alike && operands.size() == 2) convert_operands(operands, at::result_type(*operands[0], *operands[1]), copies);
  return !operands.empty() && add_broadcast(operands, ScalarType::Bool, out, op.has(ir::kFactWrapsNumber));
}

// where(condition, self, other)
bool where(const OpEntry&, const IValue* args, Inferred& out) {
  const at::Tensor* operands[3] = {&args[0].toTensor(), &args[1].toTensor(), &args[2].toTensor()};
  if (operands[0]->scalar_type() != ScalarType::Bool || !is_remote(*operands[0])) return false;
  const ScalarType dtype = operands[1]->scalar_type() == operands[2]->scalar_type()
                               ? operands[1]->scalar_type()
                               : at::result_type(*operands[1], *operands[2]);
  std::span<const at::Tensor*, 2> values(&operands[1], 2);
  c10::SmallVector<at::Tensor, 2> copies;
  convert_operands(values, dtype, copies);
  return add_broadcast(operands, dtype, out);
}

enum class ReductionKind { kNumber, kSum, kBool, kIndex };

template <ReductionKind kind>
bool reduction(const OpEntry& op, const IValue* args, Inferred& out) {
  const at::Tensor& self = args[0].toTensor();
  if (!is_remote(self)) return false;
  ScalarType dtype = self.scalar_type();
  if (kind == ReductionKind::kSum) {
    if (c10::isIntegralType(dtype, true)) dtype = ScalarType::Long;
    dtype = dtype_arg(op, args, dtype);
  } else if (kind == ReductionKind::kBool) {
    if (dtype == ScalarType::Byte) return false;
    dtype = ScalarType::Bool;
  } else if (kind == ReductionKind::kIndex) {
    if (self.numel() == 0 || c10::isComplexType(dtype) || dtype == ScalarType::Bool) return false;
    dtype = ScalarType::Long;
  } else {
    if (self.numel() == 0 && op.dim < 0 &&
        (op.desc->opcode == ir::ops::aten_max || op.desc->opcode == ir::ops::aten_min)) {
      TORCH_CHECK(false, op.desc->name.substr(6),
                  "(): Expected reduction dim to be specified for input.numel() == 0. "
                  "Specify the reduction dim with the 'dim' argument.");
    }
    if (!is_standard_float(dtype) || self.numel() == 0) return false;
    dtype = dtype_arg(op, args, dtype);
    if (!is_standard_float(dtype)) return false;
  }
  const int64_t rank = self.dim();
  uint64_t reduced = 0;
  if (op.dim < 0 || args[op.dim].isNone()) {
    reduced = ~uint64_t{0};
  } else if (args[op.dim].isInt()) {
    int64_t d = args[op.dim].toInt();
    if (d < -std::max<int64_t>(rank, 1) || d >= std::max<int64_t>(rank, 1)) return false;
    reduced = uint64_t{1} << (d < 0 ? d + std::max<int64_t>(rank, 1) : d);
  } else {
    const auto dims = args[op.dim].toListRef();
    if (dims.empty() && kind == ReductionKind::kBool) return false;  // they reduce nothing then
    if (dims.empty()) reduced = ~uint64_t{0};
    for (const IValue& item : dims) {
      int64_t d = item.toInt();
      if (d < -std::max<int64_t>(rank, 1) || d >= std::max<int64_t>(rank, 1)) return false;
      const uint64_t bit = uint64_t{1} << (d < 0 ? d + std::max<int64_t>(rank, 1) : d);
      if (reduced & bit) return false;
      reduced |= bit;
    }
  }
  const bool keep = op.keepdim >= 0 && args[op.keepdim].toBool();
  c10::DimVector sizes;
  for (int64_t i = 0; i < rank; ++i) {
    if (!(reduced >> i & 1)) {
      sizes.push_back(self.size(i));
    } else if (keep) {
      sizes.push_back(1);
    }
  }
  out.add(sizes, dtype);
  if (op.desc->results.size() == 2) {  // max.dim, min.dim
    out.add(sizes, ScalarType::Long);
  }
  return op.desc->results.size() <= 2;
}

// GEMMs (rank 2) or batched GEMMs (rank 3). With `kAdds`, the first operand is added and broadcasts to the result. The
// overloads with `out_dtype` return that dtype, and accept an added operand of either dtype.
template <int64_t kRank, bool kAdds>
bool matmul_rule(const OpEntry& op, const IValue* args, Inferred& out) {
  const at::Tensor& a = args[kAdds].toTensor();
  const at::Tensor& b = args[kAdds + 1].toTensor();
  if (a.dim() != kRank || b.dim() != kRank || a.size(-1) != b.size(-2) || !same_float(a, b)) return false;
  if (kRank == 3 && a.size(0) != b.size(0)) return false;
  c10::DimVector sizes(a.sizes().begin(), a.sizes().end());
  sizes.back() = b.size(-1);
  const ScalarType dtype = dtype_arg(op, args, a.scalar_type());
  const bool widened =
      dtype == ScalarType::Float && (a.scalar_type() == ScalarType::Half || a.scalar_type() == ScalarType::BFloat16);
  TORCH_CHECK(dtype == a.scalar_type() || widened, "out_dtype must be ", a.scalar_type(),
              ", as the operands are, or Float for operands of Half or BFloat16, but got ", dtype);
  if constexpr (kAdds) {
    const at::Tensor& added = args[0].toTensor();
    if (!is_remote(added) || (added.scalar_type() != dtype && added.scalar_type() != a.scalar_type())) return false;
    if (added.dim() > kRank || added.dim() < 1) return false;
    for (int64_t i = 1; i <= added.dim(); ++i) {
      if (added.size(-i) != sizes[kRank - i] && added.size(-i) != 1) return false;
    }
  }
  out.add(sizes, dtype);
  return true;
}

// addmm, and baddbmm with `out_dtype`, for which torch has no meta.
bool addmm_rule(const OpEntry& op, const IValue* args, Inferred& out) {
  return (op.desc->opcode == ir::ops::aten_baddbmm_dtype ? matmul_rule<3, true> : matmul_rule<2, true>)(op, args, out);
}

// Each result has the metadata of the tensor at the same index of the first list. Only for floats: integers may be
// promoted, and complex numbers are.
bool foreach_like(const OpEntry& op, const IValue* args, Inferred& out) {
  if (!args[0].isTensorList()) return false;
  const auto tensors = args[0].toListRef();
  for (const IValue& item : tensors) {
    const at::Tensor& t = item.toTensor();
    if (!is_remote(t) || !is_standard_float(t.scalar_type()) || !t.is_non_overlapping_and_dense()) return false;
  }
  for (uint32_t a = 1; a < op.arg_count; ++a) {
    if (args[a].isBool()) return false;  // subtraction refuses bools
    if (args[a].isComplexDouble() || (args[a].isTensor() && args[a].toTensor().is_complex())) return false;
    if (!args[a].isList()) continue;
    const auto others = args[a].toListRef();
    if (others.size() != tensors.size()) return false;
    if (!args[a].isTensorList()) {
      for (const IValue& item : others) {
        if (item.isBool() || item.isComplexDouble()) return false;
      }
      continue;
    }
    for (size_t i = 0; i < tensors.size(); ++i) {
      const at::Tensor& t = tensors[i].toTensor();
      const at::Tensor& other = others[i].toTensor();
      if (!t.sizes().equals(other.sizes()) || !t.strides().equals(other.strides()) ||
          t.scalar_type() != other.scalar_type()) {
        return false;
      }
    }
  }
  out.list_lengths.push_back(static_cast<uint32_t>(tensors.size()));
  // CPU calls an op for each tensor, which may give a dim of size 1 another stride.
  const bool number = op.per_tensor_op != nullptr && op.per_tensor_op->has(ir::kFactWrapsNumber);
  for (const IValue& item : tensors) {
    const at::Tensor& t = item.toTensor();
    add_broadcast({&t}, t.scalar_type(), out, number);
  }
  return true;
}

// _foreach_norm(self, ord, dtype): 0-dim results. A dtype may be invalid, and so are some norms of no elements.
bool foreach_norm(const OpEntry&, const IValue* args, Inferred& out) {
  const auto tensors = args[0].toListRef();
  if (!args[2].isNone()) return false;
  for (const IValue& item : tensors) {
    const at::Tensor& t = item.toTensor();
    if (!is_remote(t) || !is_standard_float(t.scalar_type()) || t.numel() == 0) return false;
  }
  out.list_lengths.push_back(static_cast<uint32_t>(tensors.size()));
  for (const IValue& item : tensors) out.add({}, item.toTensor().scalar_type());
  return true;
}

// Functional optimizer steps (_fused_adam, ...): result i is a list with the metadata of argument i.
bool copied_lists(const OpEntry& op, const IValue* args, Inferred& out) {
  for (size_t i = 0; i < op.desc->results.size(); ++i) {
    if (!args[i].isTensorList()) return false;
    const auto tensors = args[i].toListRef();
    out.list_lengths.push_back(static_cast<uint32_t>(tensors.size()));
    for (const IValue& item : tensors) {
      const at::Tensor& t = item.toTensor();
      if (!is_remote(t) || !t.is_non_overlapping_and_dense()) return false;
      out.add(t.sizes(), t.strides(), t.scalar_type());
    }
  }
  return true;
}

// isin(number, test_elements): a 0-dim result. torch's structured meta has the sizes [0].
bool number_is_in(const OpEntry&, const IValue* args, Inferred& out) {
  const at::Tensor& elements = args[1].toTensor();
  const bool computed = c10::isIntegralType(elements.scalar_type(), false) || is_standard_float(elements.scalar_type());
  if (!is_remote(elements) || !computed || elements.scalar_type() == ScalarType::BFloat16) return false;
  out.add({}, ScalarType::Bool);
  return true;
}

// arange(end), arange(start, end), arange(start, end, step), each with dtype, layout, device, pin_memory after them.
bool arange(const OpEntry& op, const IValue* args, Inferred& out) {
  if (op.dtype < 1 || op.dtype > 3) return false;
  double bounds[3] = {0, 0, 1};
  bool integral = true;
  for (int i = 0; i < op.dtype; ++i) {
    const c10::Scalar value = args[i].toScalar();
    if (value.isComplex()) return false;
    integral &= value.isIntegral(true);
    bounds[op.dtype == 1 ? 1 : i] = value.toDouble();
  }
  const double span = bounds[1] - bounds[0];
  constexpr double kExact = 9007199254740992.0;  // 2^53: doubles do not represent all larger integers
  const auto is_large = [](double number) { return std::abs(number) >= kExact; };
  if (bounds[2] == 0 || !std::isfinite(span) || span / bounds[2] < 0 || is_large(span)) return false;
  if (integral && (is_large(bounds[0]) || is_large(bounds[1]) || is_large(bounds[2]))) return false;
  const ScalarType dtype = dtype_arg(op, args, integral ? ScalarType::Long : c10::get_default_dtype_as_scalartype());
  if (c10::isIntegralType(dtype, true) != integral) return false;  // the kernel rounds the bounds first
  out.add({static_cast<int64_t>(std::ceil(span / bounds[2]))}, dtype);
  return true;
}

std::span<const NamedShapeRule> common_rules() {
  using enum ir::ShapeFunction;
  static constexpr NamedShapeRule kRules[] = {
      {kPointwise, pointwise},
      {kPointwiseAny, pointwise_any},
      {kPromoted, promoted},
      {kLerp, lerp},
      {kAddcdiv, addcdiv},
      {kClamp, clamp},
      {kGelu, gelu<1>},
      {kGeluBackward, gelu<2>},
      {kWhere, where},
      {kLike, like_first},
      {kLikeNumber, like_number},
      {kLikeFloat, like_float},
      {kComparison, comparison<false>},
      {kComparisonAny, comparison<true>},
      {kFrexp, frexp},
      {kAngle, angle},
      {kReduction, reduction<ReductionKind::kNumber>},
      {kSum, reduction<ReductionKind::kSum>},
      {kAnyAll, reduction<ReductionKind::kBool>},
      {kArgReduction, reduction<ReductionKind::kIndex>},
      {kMm, matmul_rule<2, false>},
      {kBmm, matmul_rule<3, false>},
      {kAddmm, addmm_rule},
      {kForeach, foreach_like},
      {kForeachNorm, foreach_norm},
      {kCopiedLists, copied_lists},
      {kNumberIsIn, number_is_in},
      {kArange, arange},
  };
  return kRules;
}

}  // namespace

ShapeRuleFunction find_shape_rule(ir::ShapeFunction function) {
  if (function == ir::ShapeFunction::kNone) return nullptr;
  for (const auto rules : {common_rules, data_movement_rules, nn_rules, linalg_rules}) {
    const auto found = std::ranges::find(rules(), function, &NamedShapeRule::function);
    if (found != rules().end()) return found->rule;
  }
  TORCH_INTERNAL_ASSERT(false, "no file of shape rules has function ", static_cast<int>(function));
}

}  // namespace torch_remote::frontend
