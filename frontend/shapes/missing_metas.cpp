// Meta functions that torch lacks, or has for fewer dtypes than kernels. Without one, an eager call needs a round trip,
// and torch.compile runs the op while it traces. A random op then consumes numbers that belong to the program. Also
// meta functions for eager calls of ops whose meta in torch has other strides than the CPU kernel.
#include <ATen/TensorIterator.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/core/Reduction.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/sub.h>
#include <torch/library.h>

#include "frontend/shapes/shape_rules.h"
#include "ir/ops/op_table_generated.h"

namespace torch_remote::frontend {
namespace {

// The result has the sizes and the dtype of the argument with this index. It is contiguous, or also has its strides.
template <size_t kIndex, bool kContiguous = true>
void like_argument(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const size_t count = op.schema().arguments().size();
  const at::Tensor like = torch::jit::peek(*stack, kIndex, count).toTensor();
  torch::jit::drop(*stack, count);
  stack->emplace_back(kContiguous ? at::empty_symint(like.sym_sizes(), like.options()) : at::empty_like(like));
}

// The last two dims must be dense in memory, in either order, and rows must begin at multiples of 16 bytes.
void check_rows(const at::Tensor& mat) {
  const int64_t last = mat.dim() - 1, alignment = 16 / static_cast<int64_t>(mat.element_size());
  const auto packed = [&](int64_t inner, int64_t outer) {
    return TORCH_GUARD_OR_FALSE(mat.sym_stride(inner).sym_eq(1)) &&
           TORCH_GUARD_OR_TRUE(mat.sym_stride(outer).sym_ge(mat.sym_size(inner).max(1)));
  };
  const bool transposed = packed(last - 1, last);
  TORCH_CHECK(transposed || packed(last, last - 1), "Invalid strides/sizes, got ", mat.sym_strides(),
              " for strides and ", mat.sym_sizes(), " for sizes");
  const c10::SymInt rows = mat.sym_stride(transposed ? last : last - 1);
  TORCH_CHECK(TORCH_GUARD_OR_TRUE((rows % alignment).sym_eq(0)), "strides should be multiple of 16 bytes");
}

// Grouped GEMM (mixtures of experts), in the three dtypes that kernels support, with their checks in their order.
// torch's own meta supports only bfloat16. For [m, k] x [g, k, n], `offs` has the ends of the groups of rows, and the
// result is [m, n]. Rows of the result begin at multiples of 16 bytes.
at::Tensor grouped_mm(const at::Tensor& a, const at::Tensor& b, const std::optional<at::Tensor>& offs,
                      const std::optional<at::Tensor>& bias, std::optional<c10::ScalarType> dtype) {
  for (const auto& [mat, name] : {std::pair(&a, "mat_a"), {&b, "mat_b"}}) {
    const auto type = mat->scalar_type();
    TORCH_CHECK(type == at::kBFloat16 || type == at::kFloat || type == at::kHalf, "Expected ", name,
                " to be Float32, BFloat16 or Float16 matrix, got ", type);
  }
  TORCH_CHECK(a.dim() == 2 || a.dim() == 3, "mat_a has to be 2 or 3d");
  TORCH_CHECK(b.dim() == 2 || b.dim() == 3, "mat_b has to be 2 or 3d");
  const bool a_flat = a.dim() == 2, b_flat = b.dim() == 2;
  if (!a_flat || !b_flat) {
    TORCH_SYM_CHECK(a.sym_size(-1).sym_eq(b.sym_size(-2)), "contraction dimension of mat_a and mat_b must match");
  }
  check_rows(a);
  check_rows(b);
  TORCH_CHECK(offs.has_value() == (a_flat || b_flat),
              "Have to provide offsets if there is a 2d matrix, or no offset if both matrices are 3d");
  if (offs.has_value()) {
    TORCH_CHECK(offs->dim() == 1, "offs has to be 1D");
    TORCH_CHECK(offs->scalar_type() == at::kInt, "Offsets have to be int32");
  }
  TORCH_CHECK(!bias.has_value(), "Bias not supported yet");
  const auto type = dtype.value_or(a.scalar_type());
  TORCH_CHECK(type == a.scalar_type(), "Grouped gemm output dtype must match `mat_a` dtype");

  c10::SymDimVector sizes;
  if (a_flat && b_flat) {
    sizes = {offs->sym_size(0), a.sym_size(0), b.sym_size(1)};
  } else if (a_flat) {
    TORCH_SYM_CHECK(offs->sym_size(0).sym_eq(b.sym_size(0)), "matrix batch sizes have to match");
    sizes = {a.sym_size(0), b.sym_size(-1)};
  } else if (b_flat) {
    TORCH_SYM_CHECK(offs->sym_size(0).sym_eq(a.sym_size(0)), "matrix batch sizes have to match");
    sizes = {a.sym_size(1), b.sym_size(1)};
  } else {
    TORCH_SYM_CHECK(a.sym_size(0).sym_eq(b.sym_size(0)), "batched dimension has to match");
    sizes = {a.sym_size(0), a.sym_size(1), b.sym_size(-1)};
  }
  const int64_t alignment = 16 / static_cast<int64_t>(c10::elementSize(type));
  const c10::SymInt row = (sizes.back() + (alignment - 1)) / alignment * alignment;
  c10::SymDimVector strides = {row, 1};
  if (sizes.size() == 3) strides.insert(strides.begin(), sizes[1] * row);
  return at::empty_strided_symint(sizes, strides, a.options().dtype(type));
}

// -- batch norm over several processes: statistics of half-precision inputs are float32

at::Tensor channels_of(const at::Tensor& input) {
  TORCH_CHECK(input.dim() >= 2, "batch norm over several processes expects an input of 2 dimensions or more");
  const auto dtype = input.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return at::empty_symint({input.sym_size(1)}, input.options().dtype(dtype));
}

std::tuple<at::Tensor, at::Tensor> batch_norm_stats(const at::Tensor& input, double) {
  return {channels_of(input), channels_of(input)};
}

std::tuple<at::Tensor, at::Tensor> batch_norm_gather_stats(const at::Tensor& input, const at::Tensor&,
                                                           const at::Tensor&, const std::optional<at::Tensor>&,
                                                           const std::optional<at::Tensor>&, double, double,
                                                           const at::Tensor&) {
  return {channels_of(input), channels_of(input)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> batch_norm_backward_reduce(
    const at::Tensor&, const at::Tensor& input, const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&,
    bool sums, bool weight, bool bias) {
  const auto made = [&](bool wanted) { return wanted ? channels_of(input) : at::Tensor(); };
  return {made(sums), made(sums), made(weight), made(bias)};
}

// -- metas with the strides of CPU kernels ----------------------------------------------------------------------------

// Contiguous. In torch's meta the gradient has the strides of `self`.
at::Tensor glu_backward(const at::Tensor&, const at::Tensor& self, int64_t dim) {
  TORCH_CHECK(self.dim() > 0, "glu does not support 0-dimensional tensors");
  const int64_t halved = at::maybe_wrap_dim(dim, self.dim());
  TORCH_CHECK(self.size(halved) % 2 == 0, "Halving dimension must be even, but dimension ", halved, " is size ",
              self.size(halved));
  return at::empty(self.sizes(), self.options());
}

// Contiguous. torch's meta has the strides of CUDA's kernel.
at::Tensor nonzero_static(const at::Tensor& self, int64_t size, int64_t) {
  TORCH_CHECK(size >= 0, "nonzero_static: 'size' must be an non-negative integer");
  return at::empty({size, self.dim()}, self.options().dtype(at::kLong));
}

// For integer exponents the CPU kernel gets its operands unchanged. For others, CPU multiplies by a power of two that
// is made from a number (and then contiguous) or from a tensor.
at::Tensor ldexp(const at::Tensor& self, const at::Tensor& other) {
  const auto dtype = self.scalar_type();
  if (c10::isFloatingType(dtype) && c10::isIntegralType(other.scalar_type(), /*includeBool=*/true)) {
    TORCH_CHECK_NOT_IMPLEMENTED(other.scalar_type() != at::kBool, "\"ldexp_cpu_exp\" not implemented for 'Bool'");
    at::TensorIterator iterator = at::TensorIteratorConfig()
                                      .add_owned_output(at::Tensor())
                                      .add_owned_const_input(self)
                                      .add_owned_const_input(other)
                                      .check_all_same_dtype(false)
                                      .allow_cpu_scalars(true)
                                      .declare_static_dtype(dtype)
                                      .build();
    return iterator.output();
  }
  const bool number = dtype == at::kFloat || c10::isIntegralType(dtype, /*includeBool=*/true);
  return at::mul(self, number ? at::pow(2.0, other).contiguous() : at::pow(at::full({}, 2.0, self.options()), other));
}

// CPU subtracts with `other` as the first operand, so `other`'s order of dims takes precedence.
at::Tensor rsub(const at::Tensor& self, const at::Tensor& other, const at::Scalar& alpha) {
  const at::Tensor result = at::sub(other, self, alpha);
  ResultMeta laid_out;
  broadcast_result({&other, &self}, laid_out);
  return at::empty_strided(laid_out.sizes, laid_out.strides, result.options());
}

// The loss of a single vector is 0-dim, even without reduction. In torch's meta it has the shape [1].
std::tuple<at::Tensor, at::Tensor> multilabel_margin_loss(const at::Tensor& self, const at::Tensor& target,
                                                          int64_t reduction) {
  const bool each = reduction == at::Reduction::None && target.dim() > 1;
  const at::Tensor loss = each ? at::empty({self.size(0)}, self.options()) : at::empty({}, self.options());
  return {loss, at::empty(target.sizes(), self.options())};
}

at::Tensor multi_margin_loss(const at::Tensor& self, const at::Tensor& target, const at::Scalar&, const at::Scalar&,
                             const std::optional<at::Tensor>&, int64_t reduction) {
  const bool each = reduction == at::Reduction::None && target.dim() > 0;
  return each ? at::empty({self.dim() > 1 ? self.size(0) : 1}, self.options()) : at::empty({}, self.options());
}

at::Tensor repeat_interleave(const at::Tensor& repeats, std::optional<int64_t> output_size) {
  const auto dtype = repeats.scalar_type();
  const bool integers = dtype == at::kLong || dtype == at::kInt;
  TORCH_CHECK_NOT_IMPLEMENTED(integers, "\"repeat_interleave_cpu\" not implemented for '", dtype, "'");
  TORCH_CHECK(repeats.dim() == 1, "repeat_interleave only accept 1D vector as repeat");
  return at::empty({output_size.value()}, repeats.options());
}

std::tuple<at::Tensor, at::Tensor> histogram(const at::Tensor& self, int64_t bins, std::optional<at::ArrayRef<double>>,
                                             const std::optional<at::Tensor>&, bool) {
  TORCH_CHECK(bins > 0, "torch.histogram(): bins must be > 0, but got ", bins, " for dimension 0");
  return {at::empty({bins}, self.options()), at::empty({bins + 1}, self.options())};
}

std::tuple<at::Tensor, at::Tensor> histogram_between(const at::Tensor& self, const at::Tensor& bins,
                                                     const std::optional<at::Tensor>&, bool) {
  TORCH_CHECK(bins.dim() == 1 && bins.numel() > 0,
              "torch.histogram(): bins tensor should have one dimension and at least one element, but got shape ",
              bins.sizes());
  return {at::empty({bins.numel() - 1}, self.options()), at::empty({bins.numel()}, bins.options())};
}

TORCH_LIBRARY_IMPL(aten, Meta, library) {
  for (const char* name : {"_sample_dirichlet", "binomial", "_dirichlet_grad"}) {
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<&like_argument<0>>());
  }
  for (const char* name : {"_ctc_loss_backward", "_ctc_loss_backward.Tensor", "fractional_max_pool3d_backward",
                           "multi_margin_loss_backward", "multilabel_margin_loss_backward"}) {
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<&like_argument<1>>());
  }
  for (const char* name : {"_standard_gamma_grad", "batch_norm_elemt"}) {
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<&like_argument<0, false>>());
  }
  library.impl("batch_norm_backward_elemt", torch::CppFunction::makeFromBoxedFunction<&like_argument<1, false>>());
  library.impl("histogram.bin_ct", &histogram);
  library.impl("histogram.bins_tensor", &histogram_between);
  library.impl("_grouped_mm", &grouped_mm);
  library.impl("batch_norm_stats", &batch_norm_stats);
  library.impl("batch_norm_gather_stats_with_counts", &batch_norm_gather_stats);
  library.impl("batch_norm_backward_reduce", &batch_norm_backward_reduce);
}

}  // namespace

const c10::KernelFunction* find_custom_meta(ir::Opcode opcode) {
  using c10::KernelFunction;
  static const std::pair<ir::Opcode, KernelFunction> kMetas[] = {
      {ir::ops::aten_glu_backward, KernelFunction::makeFromUnboxedRuntimeFunction(&glu_backward)},
      {ir::ops::aten_nonzero_static, KernelFunction::makeFromUnboxedRuntimeFunction(&nonzero_static)},
      {ir::ops::aten_ldexp_Tensor, KernelFunction::makeFromUnboxedRuntimeFunction(&ldexp)},
      {ir::ops::aten_rsub_Tensor, KernelFunction::makeFromUnboxedRuntimeFunction(&rsub)},
      {ir::ops::aten_multilabel_margin_loss_forward,
       KernelFunction::makeFromUnboxedRuntimeFunction(&multilabel_margin_loss)},
      {ir::ops::aten_multi_margin_loss, KernelFunction::makeFromUnboxedRuntimeFunction(&multi_margin_loss)},
      {ir::ops::aten_repeat_interleave_Tensor, KernelFunction::makeFromUnboxedRuntimeFunction(&repeat_interleave)},
  };
  for (const auto& [op, meta] : kMetas) {
    if (op == opcode) return &meta;
  }
  return nullptr;
}

}  // namespace torch_remote::frontend
