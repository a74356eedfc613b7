#include <ATen/ExpandUtils.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/TensorUtils.h>
#include <ATen/WrapDimUtilsMulti.h>
#include <ATen/native/BucketizationUtils.h>
#include <ATen/native/Resize.h>

#include <algorithm>

#include "frontend/shapes/call_checks_generated.h"
#include "frontend/shapes/shape_rules.h"
#include "frontend/shapes/write_checks.h"
#include "frontend/versions/versions.h"

namespace torch_remote::frontend {

bool is_out(const OpEntry& op) { return op.desc->flags & ir::kOpOut; }

const at::Tensor* written_at(const OpEntry& op, const c10::IValue* args, int i) {
  for (uint32_t a = 0; a < op.arg_count; ++a) {
    if (op.desc->args[a].writes && args[a].isTensor() && i-- == 0) return &args[a].toTensor();
  }
  return nullptr;
}

void check_same_dtype(const at::Tensor& a, const at::Tensor& b) {
  TORCH_CHECK(a.scalar_type() == b.scalar_type(), "expected scalar type ", a.scalar_type(), " but found ",
              b.scalar_type());
}

namespace checks {

using c10::IValue;
using c10::ScalarType;

// -- matmuls: torch promotes no dtypes here ---------------------------------------------------------------------------

void mm(const OpEntry&, const IValue* args) {
  const at::Tensor &a = tensor_at(args, 0), &b = tensor_at(args, 1);
  if (a.dim() != 2 || b.dim() != 2 || a.size(1) != b.size(0)) return;  // the meta function raises
  TORCH_CHECK(a.dtype() == b.dtype(), "expected m1 and m2 to have the same dtype, but got: ", a.dtype(),
              " != ", b.dtype());
}

void bmm(const OpEntry&, const IValue* args) {
  const at::Tensor &a = tensor_at(args, 0), &b = tensor_at(args, 1);
  const bool fits = a.dim() == 3 && b.dim() == 3 && a.size(2) == b.size(1) && a.size(0) == b.size(0);
  if (fits && a.numel() != 0 && b.numel() != 0) check_same_dtype(a, b);  // otherwise the kernel does not check
}

void addbmm(const OpEntry&, const IValue* args) {
  const at::Tensor &self = tensor_at(args, 0), &a = tensor_at(args, 1), &b = tensor_at(args, 2);
  TORCH_CHECK(self.dtype() == b.dtype(), "self and mat2 must have the same dtype, but got ", self.scalar_type(),
              " and ", b.scalar_type());
  TORCH_CHECK(a.dtype() == b.dtype(), "mat1 and mat2 must have the same dtype, but got ", a.scalar_type(), " and ",
              b.scalar_type());
}

// CPU creates the result first and calls addmv with it.
void mv(const OpEntry&, const IValue* args) {
  const at::Tensor &matrix = tensor_at(args, 0), &vector = tensor_at(args, 1);
  const int64_t rows = matrix.size(0);
  TORCH_CHECK(matrix.dim() == 2 && vector.dim() == 1, "vector + matrix @ vector expected, got 1, ", matrix.dim(), ", ",
              vector.dim());
  TORCH_CHECK(matrix.size(1) == vector.size(0), "size mismatch, got input (", rows, "), mat (", rows, "x",
              matrix.size(1), "), vec (", vector.size(0), ")");
  TORCH_CHECK(matrix.scalar_type() == vector.scalar_type(), "addmv input tensors must have the same dtype, but got ",
              vector.scalar_type(), ", ", matrix.scalar_type(), ", and ", vector.scalar_type());
}

void dot(const OpEntry&, const IValue* args) {
  const at::Tensor &a = tensor_at(args, 0), &b = tensor_at(args, 1);
  if (a.dim() != 1 || b.dim() != 1) return;
  TORCH_CHECK(a.scalar_type() == b.scalar_type(), "dot : expected both vectors to have same dtype, but found ",
              a.scalar_type(), " and ", b.scalar_type());
  TORCH_CHECK(a.numel() == b.numel(), "inconsistent tensor size, expected tensor ", a.sizes(), " and src ", b.sizes(),
              " to have the same number of elements, but got ", a.numel(), " and ", b.numel(),
              " elements respectively");
}

// -- written tensors --------------------------------------------------------------------------------------------------

void no_overlap_inside(const OpEntry& op, const IValue* args) {
  if (const at::Tensor* out = written_at(op, args, 0)) at::assert_no_internal_overlap(*out);
}

// addmm(self, a, b): `self` is checked even if beta is 0. For the in-place op, torch's meta function checks `self`.
void addmm(const OpEntry& op, const IValue* args) {
  no_overlap_inside(op, args);
  const at::Tensor &self = tensor_at(args, 0), &a = tensor_at(args, 1), &b = tensor_at(args, 2);
  if ((op.desc->flags & ir::kOpInPlace) || a.dim() != 2 || b.dim() != 2) return;
  TORCH_CHECK(self.dim() <= 2, "expand(torch.", self.scalar_type(), "Tensor{", self.sizes(),
              "}, size=", c10::IntArrayRef({a.size(0), b.size(1)}),
              "): the number of sizes provided (2) must be greater or equal to "
              "the number of dimensions in the tensor (",
              self.dim(), ")");
  (void)at::inferExpandGeometry(self.sizes(), self.strides(), {a.size(0), b.size(1)});
}

// The written tensor overlaps neither itself nor an operand that is read.
void no_overlap(const OpEntry& op, const IValue* args) {
  const at::Tensor* out = written_at(op, args, 0);
  if (out == nullptr) return;
  at::assert_no_internal_overlap(*out);
  for (uint32_t i = 0; i < op.arg_count; ++i) {
    if (op.desc->args[i].writes || !args[i].isTensor() || !args[i].toTensor().defined()) continue;
    at::assert_no_overlap(*out, args[i].toTensor());
  }
}

// tril_ and triu_ work in place if the matrices are contiguous in memory, and copy the result otherwise.
void triangle(const OpEntry& op, const IValue* args) {
  if (!(op.desc->flags & ir::kOpInPlace)) return;
  const at::Tensor& self = tensor_at(args, 0);
  if (self.numel() == 0 || self.dim() <= 3 || self.is_contiguous()) return;
  int64_t stride = self.size(-1) * self.size(-2);
  for (int64_t i = self.dim() - 3; i >= 0; --i) {
    if (i == 0 && (self.stride(0) == 0 || self.size(0) == 1)) continue;
    if (self.stride(i) != stride) {
      at::assert_no_internal_overlap(self);
      return;
    }
    stride *= self.size(i);
  }
}

// cumsum, cumprod: a tensor of rank 0 or without elements is only copied. An `out` of other sizes is resized, and then
// does not overlap.
void cumulative(const OpEntry& op, const IValue* args) {
  const at::Tensor* out = written_at(op, args, 0);
  if (out == nullptr || out->dim() == 0 || out->numel() == 0) return;
  if (out->sizes() == tensor_at(args, 0).sizes()) at::assert_no_internal_overlap(*out);
}

// cummax, cummin(self, dim). torch's meta functions accept any dim for a tensor of rank 0.
void cumulative_extremum(const OpEntry& op, const IValue* args) {
  const int64_t dim = args[1].toInt();
  TORCH_CHECK_INDEX(tensor_at(args, 0).dim() != 0 || dim == 0 || dim == -1, op.desc->name.substr(6, 6),
                    "(): Expected reduction dim -1 or 0 for scalar but got ", dim);
}

// In place, elements of one operand are read while those of another are written, so they must not overlap.
void apart(const OpEntry& op, const IValue* args) {
  if (!(op.desc->flags & ir::kOpInPlace)) return;
  for (uint32_t i = 1; i < op.arg_count; ++i) {
    if (args[i].isTensor() && is_remote(args[i].toTensor())) {
      at::assert_no_overlap(tensor_at(args, 0), args[i].toTensor());
    }
  }
}

// addr(self, vec1, vec2)
void addr(const OpEntry& op, const IValue* args) {
  if (!(op.desc->flags & ir::kOpInPlace)) return;
  const at::Tensor& self = tensor_at(args, 0);
  TORCH_CHECK(self.dim() == 2, "2D tensor expected, got ", self.dim(), "D tensor for input");
  const int64_t rows = tensor_at(args, 1).numel(), columns = tensor_at(args, 2).numel();
  TORCH_CHECK(self.size(0) == rows && self.size(1) == columns, "size mismatch, input: ", self.sizes(),
              ", v1: ", tensor_at(args, 1).sizes(), ", v2: ", tensor_at(args, 2).sizes());
  at::assert_no_internal_overlap(self);
}

// kthvalue(self, k, dim, keepdim) -> values, indices
void kthvalue(const OpEntry& op, const IValue* args) {
  const at::Tensor* values = written_at(op, args, 0);
  if (values != nullptr) at::assert_no_overlap(tensor_at(args, 0), *values);
}

// -- indexing --------------------------------------------------------------------------------------------------------

void take(const OpEntry& op, const IValue* args) {
  const at::Tensor& index = tensor_at(args, 1);
  TORCH_CHECK(index.scalar_type() == ScalarType::Long, "take(): Expected a long tensor for index, but got ",
              index.scalar_type());
  no_overlap(op, args);
}

// put_(self, index, source, accumulate)
void put(const OpEntry& op, const IValue* args) {
  const at::Tensor &self = tensor_at(args, 0), &index = tensor_at(args, 1), &source = tensor_at(args, 2);
  TORCH_CHECK_INDEX(source.numel() == index.numel(),
                    "put_(): Expected source and index to have the same number of elements, but got source.numel() = ",
                    source.numel(), ", index.numel() = ", index.numel());
  TORCH_CHECK(index.scalar_type() == ScalarType::Long, "put_(): Expected a long tensor for index, but got ",
              index.scalar_type());
  TORCH_CHECK(self.scalar_type() == source.scalar_type(),
              "put_(): self and source expected to have the same dtype, but got self.dtype = ", self.scalar_type(),
              " and source.dtype = ", source.scalar_type());
  no_overlap(op, args);
}

// index_fill(self, dim, index, value), where value is a number or a tensor
void index_fill(const OpEntry&, const IValue* args) {
  const at::Tensor &self = tensor_at(args, 0), &index = tensor_at(args, 2);
  const at::Tensor* value = args[3].isTensor() ? &args[3].toTensor() : nullptr;
  TORCH_CHECK(value == nullptr || value->dim() == 0,
              "index_fill_ only supports a 0-dimensional value tensor, but got tensor with ", value->dim(),
              " dimension(s).");
  TORCH_CHECK_INDEX(index.scalar_type() == ScalarType::Long, "index_fill_(): Expected dtype int64 for index.");
  const bool complex = value != nullptr ? value->is_complex() : args[3].toScalar().isComplex();
  TORCH_CHECK(self.is_complex() || !complex,
              "index_fill_(): Converting complex Scalar to non-complex type is not supported");
  TORCH_CHECK(index.dim() <= 1, "Index has to be a vector/scalar");
  (void)at::maybe_wrap_dim(args[1].toInt(), self.dim());
}

// index_select(self, dim, index)
void index_select(const OpEntry& op, const IValue* args) {
  const ScalarType dtype = tensor_at(args, 2).scalar_type();
  TORCH_CHECK_INDEX(tensor_at(args, 2).dim() <= 1, "index_select(): Index is supposed to be a vector");
  TORCH_CHECK(dtype == ScalarType::Long || dtype == ScalarType::Int,
              "index_select(): Expected dtype int32 or int64 for index");
  if (!is_out(op)) return;
  TORCH_CHECK(written_at(op, args, 0)->scalar_type() == tensor_at(args, 0).scalar_type(),
              "index_select(): self and result must have the same scalar type");
  no_overlap(op, args);
}

// index_put(self, indices, values, accumulate)
void index_put(const OpEntry&, const IValue* args) {
  const at::Tensor &self = tensor_at(args, 0), &values = tensor_at(args, 2);
  check_indices(args);
  TORCH_CHECK(self.scalar_type() == values.scalar_type(),
              "Index put requires the source and destination dtypes match, got ", self.scalar_type(),
              " for the destination and ", values.scalar_type(), " for the source.");
  const std::optional<c10::DimVector> sizes = indexed_sizes(args);
  TORCH_CHECK(!sizes || at::is_expandable_to(values.sizes(), *sizes), "shape mismatch: value tensor of shape ",
              values.sizes(), " cannot be broadcast to indexing result of shape ", c10::IntArrayRef(*sizes));
}

// masked_fill_(self, mask, value)
void masked_fill(const OpEntry& op, const IValue* args) {
  const at::Tensor &self = tensor_at(args, 0), &mask = tensor_at(args, 1);
  TORCH_CHECK(mask.scalar_type() == ScalarType::Bool,
              "masked_fill_ only supports boolean masks, but got mask with dtype ", mask.dtype());
  const bool in_place = op.desc->flags & ir::kOpInPlace;
  TORCH_CHECK(!in_place || at::is_expandable_to(mask.sizes(), self.sizes()), "output with shape ", self.sizes(),
              " doesn't match the broadcast shape ",
              c10::IntArrayRef(at::infer_size_dimvector(self.sizes(), mask.sizes())));
  if (!args[2].isTensor()) {
    check_fits(self.scalar_type(), args[2].toScalar());
  } else if (args[2].toTensor().is_cpu() && args[2].toTensor().dim() == 0) {
    check_fits(self.scalar_type(), args[2].toTensor().item());
  } else if (args[2].toTensor().is_complex()) {
    check_fits(self.scalar_type(), c10::complex<double>(0, 1));
  }
}

// masked_scatter(self, mask, source)
void masked_scatter(const OpEntry& op, const IValue* args) {
  const at::Tensor &self = tensor_at(args, 0), &mask = tensor_at(args, 1), &source = tensor_at(args, 2);
  TORCH_CHECK(self.scalar_type() == source.scalar_type(),
              "masked_scatter: expected self and source to have same dtypes but got", self.scalar_type(), " and ",
              source.scalar_type());
  TORCH_CHECK(mask.scalar_type() == ScalarType::Bool,
              "masked_scatter_ only supports boolean masks, but got mask with dtype ", mask.scalar_type());
  no_overlap_inside(op, args);
  apart(op, args);
}

// masked_select(self, mask)
void masked_select(const OpEntry& op, const IValue* args) {
  TORCH_CHECK(tensor_at(args, 1).scalar_type() == ScalarType::Bool, "masked_select: expected BoolTensor for mask");
  const at::Tensor* out = written_at(op, args, 0);
  TORCH_CHECK(out == nullptr || out->scalar_type() == tensor_at(args, 0).scalar_type(),
              "masked_select(): self and result must have the same scalar type");
  no_overlap(op, args);
}

// nonzero(self)
void nonzero(const OpEntry& op, const IValue* args) {
  const at::Tensor* out = written_at(op, args, 0);
  TORCH_CHECK(out == nullptr || out->scalar_type() == ScalarType::Long,
              "nonzero: Expected out tensor to have scalar type Long but got scalar type", out->scalar_type());
}

// as_strided_scatter(self, src, size, stride, storage_offset): the result is a view of a contiguous copy.
void as_strided_scatter(const OpEntry&, const IValue* args) {
  const at::Tensor& self = tensor_at(args, 0);
  const c10::DimVector size = int_list(args[2]), stride = int_list(args[3]);
  const int64_t offset = args[4].isNone() ? self.storage_offset() : args[4].toInt();
  const auto nbytes = static_cast<int64_t>(self.storage().nbytes());
  at::native::checkInBoundsForStorage(c10::IntArrayRef(size), c10::IntArrayRef(stride), offset, self.dtype(),
                                      new_storage(nbytes, self.device().index()));
}

// -- searching and counting ------------------------------------------------------------------------------------------

// bucketize(self, boundaries, ...), where self is a tensor or a number
void bucketize(const OpEntry&, const IValue* args) {
  const at::Tensor& boundaries = tensor_at(args, 1);
  TORCH_CHECK(boundaries.dim() == 1, "boundaries tensor must be 1 dimension, but got dim(", boundaries.dim(), ")");
}

// searchsorted(sorted_sequence, self, out_int32, right, side, sorter)
void searchsorted(const OpEntry& op, const IValue* args) {
  if (!args[1].isTensor()) return;
  const at::Tensor sorter = args[5].isNone() ? at::Tensor() : args[5].toTensor();
  const at::Tensor& boundaries = tensor_at(args, 0);
  TORCH_CHECK(!sorter.defined() || sorter.sizes().equals(boundaries.sizes()),
              "torch.searchsorted(): boundary and sorter must have the same size, but got boundary tensor ",
              boundaries.sizes(), "and got sorter tensor ", sorter.sizes());
  TORCH_CHECK(!sorter.defined() || sorter.scalar_type() == ScalarType::Long,
              "torch.searchsorted(): sorter must be a tensor of long dtype but got dtype ", sorter.scalar_type());
  std::optional<std::string_view> side;
  if (!args[4].isNone()) side = args[4].toStringView();
  const at::Tensor* out = written_at(op, args, 0);
  const at::Tensor result = out != nullptr
                                ? *out
                                : make_contiguous_tensor({0}, args[2].toBool() ? ScalarType::Int : ScalarType::Long,
                                                         boundaries.device().index());
  at::native::searchsorted_pre_check(boundaries, tensor_at(args, 1), result, args[2].toBool(), args[3].toBool(), side,
                                     {});
}

// histc(self, bins, min, max)
void histc(const OpEntry&, const IValue* args) {
  TORCH_CHECK(args[1].toInt() > 0, "torch.histogram(): bins must be > 0, but got ", args[1].toInt(),
              " for dimension 0");
  TORCH_CHECK(args[2].toScalar().toDouble() <= args[3].toScalar().toDouble(),
              "torch.histc: max must be larger than min");
}

// -- elementwise and reductions --------------------------------------------------------------------------------------

bool is_floating_or_complex(ScalarType dtype) { return c10::isFloatingType(dtype) || c10::isComplexType(dtype); }

// complex(real, imag), polar(abs, angle)
void complex(const OpEntry& op, const IValue* args) {
  const at::Tensor &a = tensor_at(args, 0), &b = tensor_at(args, 1);
  const auto allowed = [](ScalarType t) {
    return t == ScalarType::Half || t == ScalarType::Float || t == ScalarType::Double;
  };
  TORCH_CHECK(allowed(a.scalar_type()) && allowed(b.scalar_type()),
              "Expected both inputs to be Half, Float or Double tensors but got ", a.scalar_type(), " and ",
              b.scalar_type());
  TORCH_CHECK(a.scalar_type() == b.scalar_type(), "Expected object of scalar type ", a.scalar_type(),
              " but got scalar type ", b.scalar_type(), " for second argument");
  const at::Tensor* out = written_at(op, args, 0);
  TORCH_CHECK(out == nullptr || out->scalar_type() == c10::toComplexType(a.scalar_type()),
              "Expected object of scalar type ", c10::toComplexType(a.scalar_type()), " but got scalar type ",
              out->scalar_type(), " for argument 'out'");
}

// where(condition, self, other)
void where(const OpEntry&, const IValue* args) {
  const ScalarType dtype = tensor_at(args, 0).scalar_type();
  TORCH_CHECK(dtype == ScalarType::Bool || dtype == ScalarType::Byte,
              "where expected condition to be a boolean tensor, but got a tensor with dtype ", dtype);
}

// mean(self, dim, keepdim, dtype)
void mean(const OpEntry& op, const IValue* args) {
  const bool given = op.dtype >= 0 && !args[op.dtype].isNone();
  const ScalarType dtype = given ? args[op.dtype].toScalarType() : tensor_at(args, 0).scalar_type();
  TORCH_CHECK(is_floating_or_complex(dtype), "mean(): could not infer output dtype. ", given ? "Optional" : "Input",
              " dtype must be either a floating point or complex dtype. Got: ", dtype);
}

void std_var(const OpEntry&, const IValue* args) {
  TORCH_CHECK(is_floating_or_complex(tensor_at(args, 0).scalar_type()),
              "std and var only support floating point and complex dtypes");
}

void std_var_mean(const OpEntry& op, const IValue* args) {
  const std::string_view name = op.desc->name.substr(6, op.desc->name.find('.') - 6);
  TORCH_CHECK(is_floating_or_complex(tensor_at(args, 0).scalar_type()), name,
              " only support floating point and complex dtypes");
}

void argmax(const OpEntry& op, const IValue* args) {
  const std::string_view name = op.desc->name.substr(6, op.desc->name.find('.') - 6);
  const ScalarType dtype = tensor_at(args, 0).scalar_type();
  TORCH_CHECK(!c10::isComplexType(dtype), name, "(): does not support complex input");
  TORCH_CHECK(dtype != ScalarType::Bool, name, "(): does not support bool input");
}

bool is_bool(const IValue& value) {
  return value.isTensor() ? value.toTensor().scalar_type() == ScalarType::Bool : value.isBool();
}

// sub(self, other, alpha), where other is a tensor or a number
void subtraction(const OpEntry&, const IValue* args) {
  TORCH_REMOTE_CHECK_SUBTRACTION(
      !is_bool(args[0]) || !is_bool(args[1]),
      "Subtraction, the `-` operator, with two bool tensors is not supported. Use the `^` or `logical_xor()` "
      "operator instead.");
  TORCH_REMOTE_CHECK_SUBTRACTION(
      !is_bool(args[0]) && !is_bool(args[1]),
      "Subtraction, the `-` operator, with a bool tensor is not supported. If you are trying to invert a mask, "
      "use the `~` or `logical_not()` operator instead.");
}

// clamp_min(self, min), clamp_max, where min is a tensor or a number
void clamp_number(const OpEntry& op, const IValue* args) {
  if (args[1].isTensor() || tensor_at(args, 0).numel() == 0) return;
  TORCH_CHECK_NOT_IMPLEMENTED(!is_bool(args[0]) || !is_bool(args[1]), "\"", op.desc->name.substr(6, 9),
                              "_scalar_cpu\" not implemented for 'Bool'");
}

// maximum(self, other), minimum
void extremum(const OpEntry& op, const IValue* args) {
  const bool complex = tensor_at(args, 0).is_complex() || tensor_at(args, 1).is_complex();
  TORCH_CHECK(!complex, op.desc->name.substr(6, 7), " not implemented for complex tensors.");
}

// renorm(self, p, dim, maxnorm): it scales by a norm of each slice.
void renorm(const OpEntry& op, const IValue* args) {
  TORCH_CHECK(is_floating_or_complex(tensor_at(args, 0).scalar_type()),
              "linalg.vector_norm: Expected a floating point or complex tensor as input. Got ",
              tensor_at(args, 0).scalar_type());
  no_overlap_inside(op, args);
}

// heaviside(self, values)
void heaviside(const OpEntry&, const IValue* args) {
  const at::Tensor &self = tensor_at(args, 0), &values = tensor_at(args, 1);
  if (self.is_complex() || values.is_complex()) return;  // the kernel raises another error
  TORCH_CHECK(self.scalar_type() == values.scalar_type(),
              "heaviside is not yet implemented for tensors with different dtypes.");
}

// logit(self, eps)
void logit(const OpEntry& op, const IValue* args) {
  const at::Tensor* out = written_at(op, args, 0);
  TORCH_CHECK(out == nullptr || !c10::isIntegralType(out->scalar_type(), true), "result type ",
              c10::get_default_dtype_as_scalartype(), " can't be cast to the desired output type ", out->scalar_type());
}

// flip(self, dims)
void flip(const OpEntry&, const IValue* args) { at::dim_list_to_bitset(int_list(args[1]), tensor_at(args, 0).dim()); }

void trace(const OpEntry&, const IValue* args) {
  TORCH_CHECK(tensor_at(args, 0).dim() == 2, "trace: expected a matrix, but got tensor with dim ",
              tensor_at(args, 0).dim());
}

// _cdist_forward(x1, x2, p, compute_mode)
void cdist(const OpEntry&, const IValue* args) {
  for (int i : {0, 1}) {
    TORCH_CHECK(at::isFloatingType(tensor_at(args, i).scalar_type()), "cdist only supports floating-point dtypes, X",
                i + 1, " got: ", tensor_at(args, i).scalar_type());
  }
}

// -- linear algebra --------------------------------------------------------------------------------------------------

// _linalg_svd(A, full_matrices, compute_uv, driver)
void svd(const OpEntry&, const IValue* args) {
  TORCH_CHECK(args[3].isNone(),
              "torch.linalg.svd: keyword argument `driver=` is only supported on CUDA inputs with cuSOLVER backend.");
}

// ormqr(self, input2, input3, left, transpose)
void ormqr(const OpEntry&, const IValue* args) {
  const at::Tensor &input = tensor_at(args, 0), &tau = tensor_at(args, 1), &other = tensor_at(args, 2);
  if (input.dim() < 2 || other.dim() < 2 || tau.dim() != input.dim() - 1) return;
  const int64_t dim = args[3].toBool() ? -2 : -1;
  if (other.size(dim) < tau.size(-1) || other.size(dim) != input.size(-2)) return;  // the meta function raises
  TORCH_CHECK(tau.size(-1) == std::min(other.size(dim), input.size(-1)),
              "torch.ormqr: tau.shape[-1] must be equal to min(other.shape[", dim, "], input.shape[-1])");
}

// -- multi-tensor ----------------------------------------------------------------------------------------------------

// _foreach_norm(self, ord, dtype)
void check_foreach_norm(const IValue* args) {
  const auto dtype = args[2].isNone() ? std::nullopt : std::optional(args[2].toScalarType());
  const at::Scalar ord = args[1].toScalar();
  const bool largest = !ord.isComplex() && ord.toDouble() == std::numeric_limits<double>::infinity();
  for (const IValue& item : args[0].toListRef()) {
    const at::Tensor& t = item.toTensor();
    TORCH_CHECK(!largest || t.numel() != 0,
                "_foreach_norm cannot compute the infinity norm on an empty tensor because the operation does not have "
                "an identity");
    TORCH_CHECK(t.is_floating_point() || t.is_complex(),
                "linalg.vector_norm: Expected a floating point or complex tensor as input. Got ", t.scalar_type());
    if (!dtype) continue;
    const char* kind = t.is_complex() ? "complex" : "real";
    TORCH_CHECK(is_floating_or_complex(*dtype),
                "linalg.vector_norm: dtype should be floating point or complex, but got ", *dtype);
    TORCH_CHECK(c10::isComplexType(*dtype) == t.is_complex(), "linalg.vector_norm: dtype should be ", kind, " for ",
                kind, " inputs, but got ", *dtype);
    TORCH_CHECK(c10::promoteTypes(t.scalar_type(), *dtype) == *dtype, "linalg.vector_norm: the dtype of the input (",
                t.scalar_type(), ") should be convertible without narrowing to the specified dtype (", *dtype, ")");
  }
}

// All lists of numbers and tensors must be as long as the first one.
void foreach (const OpEntry& op, const IValue* args) {
  if (!args[0].isTensorList()) return;
  if (op.desc->shape_function == ir::ShapeFunction::kForeachNorm) check_foreach_norm(args);
  const size_t count = args[0].toListRef().size();
  for (uint32_t i = 1; i < op.arg_count; ++i) {
    if (!args[i].isList()) continue;
    const size_t length = args[i].toListRef().size();
    if (op.desc->args[i].kind == ir::ArgKind::kTensorList) {
      TORCH_CHECK(length == count, "Tensor lists must have the same number of tensors, got ", count, " and ", length);
    } else {
      TORCH_CHECK(length == count, "Tensor list must have same number of elements as scalar list.");
    }
  }
}

// _foreach_copy(self, src): each source must broadcast to its tensor.
void foreach_copy(const OpEntry& op, const IValue* args) {
  foreach (op, args);
  const auto written = args[0].toListRef(), read = args[1].toListRef();
  for (size_t i = 0; i < written.size(); ++i) {
    const c10::IntArrayRef self = written[i].toTensor().sizes(), source = read[i].toTensor().sizes();
    const c10::DimVector sizes = at::infer_size_dimvector(self, source);
    TORCH_CHECK(self.equals(sizes), "output with shape ", self, " doesn't match the broadcast shape ",
                c10::IntArrayRef(sizes));
  }
}

// _amp_foreach_non_finite_check_and_unscale_(self, found_inf, inv_scale)
void unscale(const OpEntry&, const IValue* args) {
  const at::Tensor &found = tensor_at(args, 1), &scale = tensor_at(args, 2);
  TORCH_CHECK(scale.numel() == 1, "inv_scale must be a 1-element tensor.");
  TORCH_CHECK(found.numel() == 1, "found_inf must be a 1-element tensor.");
  TORCH_CHECK(scale.scalar_type() == ScalarType::Float, "inv_scale must be a float tensor.");
  TORCH_CHECK(found.scalar_type() == ScalarType::Float, "found_inf must be a float tensor.");
}

}  // namespace checks

const CallCheckRow* find_call_check(const ir::OpDesc& desc) {
  std::string_view base = desc.name.substr(0, desc.name.find('.'));
  if (!base.starts_with("aten::")) return nullptr;
  base.remove_prefix(6);
  if (base.ends_with('_') && !base.ends_with("__")) base.remove_suffix(1);
  const auto* row = std::ranges::lower_bound(kCallChecks, base, {}, &CallCheckRow::op);
  return row != std::end(kCallChecks) && row->op == base ? row : nullptr;
}

}  // namespace torch_remote::frontend
