#include <ATen/WrapDimUtils.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/ReductionType.h>
#include <ATen/ops/_log_softmax_backward_data.h>
#include <ATen/ops/_softmax_backward_data.h>
#include <ATen/ops/_sparse_coo_tensor_with_dims_and_tensors.h>
#include <ATen/ops/_unique2.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/string_view.h>
#include <torch/library.h>

#include <array>
#include <limits>
#include <tuple>
#include <utility>
#include <vector>

#include "frontend/ops/sparse.h"
#include "frontend/shapes/call_checks.h"

namespace torch_remote::frontend::sparse {

// -- softmax over the specified elements ------------------------------------------------------------------------------

// Groups the elements of a coalesced tensor by line along `dim`: the number of each element's line, and the count.
struct Lines {
  Tensor number;
  int64_t count = 0;
};

static Lines lines_of(const Tensor& self, int64_t dim) {
  std::vector<int64_t> sizes(self.sizes().begin(), self.sizes().begin() + self.sparse_dim());
  std::vector<Tensor> rest = self._indices().unbind(0);
  rest.erase(rest.begin() + dim);
  sizes.erase(sizes.begin() + dim);
  if (rest.empty()) return {at::zeros({self._nnz()}, self._indices().options()), 1};
  const auto [found, inverse, counts] = at::_unique2(linear_positions(at::stack(rest), sizes), true, true);
  return {inverse, found.size(0)};
}

// Softmax over the elements that a COO tensor has, or log softmax. `half_to_float` has no effect, nor has the last
// parameter of the backward function.
template <bool log>
static Tensor softmax(const Tensor& given, int64_t dim, bool) {
  const Tensor self = coalesce(given);
  dim = at::maybe_wrap_dim(dim, self.dim());
  const Tensor values = self._values();
  if (dim >= self.sparse_dim()) {
    const int64_t d = dim - self.sparse_dim() + 1;
    return make_coo(self, self._indices().clone(), log ? at::log_softmax(values, d) : at::softmax(values, d), true);
  }
  if (self._nnz() == 0) return self.clone();
  const Lines lines = lines_of(self, dim);
  std::vector<int64_t> sizes = values.sizes().vec();
  sizes[0] = lines.count;
  const Tensor line = along_first_dim(lines.number, values).expand_as(values);
  const Tensor top = at::full(sizes, -std::numeric_limits<double>::infinity(), values.options())
                         .scatter_reduce_(0, line, values, "amax");
  const Tensor shifted = values.sub(top.index_select(0, lines.number)), exp = shifted.exp();
  const Tensor sum = sum_rows_by_index(exp, lines.number, lines.count).index_select(0, lines.number);
  return make_coo(self, self._indices().clone(), log ? shifted.sub(sum.log()) : exp.div(sum), true);
}

template <bool log>
static Tensor softmax_backward(const Tensor& grad, const Tensor& output, int64_t dim, const Tensor&) {
  dim = at::maybe_wrap_dim(dim, output.dim());
  const Tensor given = mask(grad, output)._values(), values = output._values();
  if (dim >= output.sparse_dim()) {
    const int64_t d = dim - output.sparse_dim() + 1;
    return make_coo(output, output._indices().clone(),
                    log ? at::_log_softmax_backward_data(given, values, d, values.scalar_type())
                        : at::_softmax_backward_data(given, values, d, values.scalar_type()),
                    true);
  }
  const Lines lines = lines_of(output, dim);
  const Tensor terms = log ? given : given.mul(values);
  const Tensor sum = sum_rows_by_index(terms, lines.number, lines.count).index_select(0, lines.number);
  return make_coo(output, output._indices().clone(),
                  log ? given.sub(values.exp().mul(sum)) : values.mul(given.sub(sum)), true);
}

// -- matmuls ----------------------------------------------------------------------------------------------------------

// Multiplies each sparse matrix of a batch (or one matrix) by its own strided matrix. Each element adds a multiple of a
// row to a row. Each block adds the result of a small GEMM to as many rows as it has. `dense` is [batches, rows,
// columns].
static Tensor times(const Tensor& sparse, const Tensor& dense) {
  const SparseElements of = elements_of(sparse);
  const int64_t rows = sparse.size(-2), columns = dense.size(-1), height = of.block[0], width = of.block[1];
  const Tensor taken = dense.reshape({-1, width, columns}).index_select(0, of.columns);
  const Tensor terms = height == 1 && width == 1 ? taken.mul(of.values) : at::bmm(of.values, taken);
  return at::zeros({of.batches * rows / height, height, columns}, terms.options())
      .index_add_(0, of.rows, terms)
      .view({of.batches, rows, columns});
}

static Tensor scaled_sum(const Tensor& self, Tensor product, const Scalar& beta, const Scalar& alpha) {
  if (!alpha.equal(1)) product = product.mul(alpha);
  if (beta.equal(0)) return product;
  const Tensor added = self.expand(product.sizes());
  return (beta.equal(1) ? added : added.mul(beta)).add(product);
}

Tensor sparse_addmm(const Tensor& self, const Tensor& mat1, const Tensor& mat2, const Scalar& beta,
                    const Scalar& alpha) {
  const bool first = mat1.layout() != at::kStrided;
  TORCH_CHECK(
      first != (mat2.layout() != at::kStrided) && self.layout() == at::kStrided, "remote: addmm of the layouts ",
      self.layout(), ", ", mat1.layout(), ", ", mat2.layout(),
      " is not supported; one of the matrices may be sparse, and the other one and the added tensor must be strided");
  TORCH_CHECK(mat1.dim() == 2 && mat2.dim() == 2, "addmm: Expected two matrices, got ", mat1.sizes(), " and ",
              mat2.sizes());
  TORCH_CHECK(mat1.size(1) == mat2.size(0), "mat1 and mat2 shapes cannot be multiplied (", mat1.size(0), "x",
              mat1.size(1), " and ", mat2.size(0), "x", mat2.size(1), ")");
  check_same_dtype(first ? mat1 : mat2, first ? mat2 : mat1);
  check_same_dtype(mat1, self);
  return scaled_sum(self, first ? times(mat1, mat2).squeeze(0) : times(mat2.t(), mat1.t()).squeeze(0).t(), beta, alpha);
}

// The same as sparse_addmm(), for batches of matrices.
static Tensor sparse_baddbmm(const Tensor& self, const Tensor& batch1, const Tensor& batch2, const Scalar& beta,
                             const Scalar& alpha) {
  const bool first = batch1.layout() != at::kStrided;
  TORCH_CHECK(first != (batch2.layout() != at::kStrided), "remote: bmm of the layouts ", batch1.layout(), " and ",
              batch2.layout(), " is not supported; exactly one of them may be sparse");
  TORCH_CHECK(batch1.dim() == 3 && batch2.dim() == 3, "bmm: batches of matrices expected, got ", batch1.sizes(),
              " and ", batch2.sizes());
  TORCH_CHECK(batch1.size(0) == batch2.size(0) && batch1.size(2) == batch2.size(1),
              "bmm: sizes cannot be multiplied: ", batch1.sizes(), " and ", batch2.sizes());
  check_same_dtype(first ? batch1 : batch2, first ? batch2 : batch1);
  check_same_dtype(batch1, self);
  return scaled_sum(
      self, first ? times(batch1, batch2) : times(batch2.transpose(1, 2), batch1.transpose(1, 2)).transpose(1, 2), beta,
      alpha);
}

static Tensor sparse_bmm(const Tensor& self, const Tensor& other) { return sparse_baddbmm(self, self, other, 0, 1); }

static Tensor& sparse_addmm_out(const Tensor& self, const Tensor& mat1, const Tensor& mat2, const Scalar& beta,
                                const Scalar& alpha, Tensor& out) {
  const Tensor result = sparse_addmm(self, mat1, mat2, beta, alpha);
  check_same_dtype(result, out);
  return out.resize_(result.sizes()).copy_(result);
}

static Tensor& sparse_addmm_in_place(Tensor& self, const Tensor& mat1, const Tensor& mat2, const Scalar& beta,
                                     const Scalar& alpha) {
  return self.copy_(sparse_addmm(self, mat1, mat2, beta, alpha));
}

// The matmul of a sparse matrix and a vector.
static Tensor matrix_vector(const Tensor& self, const Tensor& vector) {
  TORCH_CHECK(self.dim() == 2 && vector.dim() == 1 && self.size(1) == vector.size(0), "size mismatch, got input (",
              self.sizes(), "), vec (", vector.sizes(), ")");
  const Tensor column = vector.unsqueeze(1);
  return sparse_addmm(column, self, column, 0, 1).squeeze(1);
}

static Tensor& sparse_addmv_out(const Tensor& self, const Tensor& matrix, const Tensor& vector, const Scalar& beta,
                                const Scalar& alpha, Tensor& out) {
  const Tensor product = matrix_vector(matrix, vector).mul(alpha);
  const Tensor result = beta.equal(0) ? product : self.mul(beta).add(product);
  return out.resize_(result.sizes()).copy_(result);
}

Tensor sparse_sparse_mm(const Tensor& self, const Tensor& other) {
  TORCH_CHECK(self.is_sparse() && other.is_sparse(), "remote: the matmul of sparse matrices needs two COO matrices");
  TORCH_CHECK(self.dim() == 2 && other.dim() == 2 && self.size(1) == other.size(0),
              "mat1 and mat2 shapes cannot be multiplied (", self.sizes(), " and ", other.sizes(), ")");
  const SparseElements left = elements_of(coalesce(self)), right = elements_of(coalesce(other));
  const auto [which, at] = join(left.columns, right.rows);
  const Tensor values = left.values.view({-1}).index_select(0, which).mul(right.values.view({-1}).index_select(0, at));
  const Tensor indices = at::stack({left.rows.index_select(0, which), right.columns.index_select(0, at)});
  return coalesce(at::_sparse_coo_tensor_with_dims_and_tensors(2, 0, {self.size(0), other.size(1)}, indices, values,
                                                               values.options().layout(at::kSparse), false));
}

// The rows of a matmul's result that have elements: their numbers and their contents.
static std::pair<Tensor, Tensor> filled_rows(const Tensor& mat1, const Tensor& mat2) {
  const SparseElements of = elements_of(coalesce(mat1));
  const auto [rows, which, counts] = at::_unique2(of.rows, true, true);
  const Tensor terms = mat2.index_select(0, of.columns).mul(of.values.view({-1, 1}));
  return {rows, sum_rows_by_index(terms, which, rows.size(0))};
}

// A sparse matrix times a strided one (hspmm). The result has only the rows that have elements, each as a dense row.
static Tensor sparse_hspmm(const Tensor& mat1, const Tensor& mat2) {
  TORCH_CHECK(mat1.is_sparse() && mat1.sparse_dim() == 2, "hspmm: Argument #2: matrix expected, got ",
              mat1.sparse_dim(), "D tensor");
  TORCH_CHECK(mat2.layout() == at::kStrided && mat2.dim() == 2, "hspmm: Argument #3: matrix expected, got ", mat2.dim(),
              "D tensor");
  TORCH_CHECK(mat2.size(0) == mat1.size(1), "hspmm: Argument #3: Expected dim 0 size ", mat1.size(1), ", got ",
              mat2.size(0));
  const auto [rows, values] = filled_rows(mat1, mat2);
  return at::_sparse_coo_tensor_with_dims_and_tensors(1, 1, {mat1.size(0), mat2.size(1)}, rows.unsqueeze(0), values,
                                                      values.options().layout(at::kSparse), false);
}

// beta * self + alpha * (mat1 @ mat2) as a sparse tensor (sspaddmm).
static Tensor& sparse_sspaddmm_out(const Tensor& self, const Tensor& mat1, const Tensor& mat2, const Scalar& beta,
                                   const Scalar& alpha, Tensor& out) {
  TORCH_CHECK(self.is_sparse() && mat1.is_sparse() && mat2.layout() == at::kStrided,
              "remote: sspaddmm needs two sparse matrices (COO) and a strided one");
  TORCH_CHECK(mat1.sparse_dim() == 2, "sspaddmm: Argument #2: matrix expected, got ", mat1.sparse_dim(), "D tensor");
  TORCH_CHECK(mat1.dense_dim() == 0, "sspaddmm: Argument #2: scalar values expected, got ", mat1.dense_dim(),
              "D values");
  TORCH_CHECK(mat2.dim() == 2, "sspaddmm: Argument #2: matrix expected, got ", mat2.dim(), "D tensor");
  TORCH_CHECK(self.size(0) == mat1.size(0), "sspaddmm: Argument #1: Expected dim 0 size ", mat1.size(0), ", got ",
              self.size(0));
  TORCH_CHECK(self.size(1) == mat2.size(1), "sspaddmm: Argument #1: Expected dim 1 size ", mat2.size(1), ", got ",
              self.size(1));
  TORCH_CHECK(mat2.size(0) == mat1.size(1), "sspaddmm: Argument #3: Expected dim 0 size ", mat1.size(1), ", got ",
              mat2.size(0));
  const auto [rows, values] = filled_rows(mat1, mat2);
  const int64_t columns = mat2.size(1);
  const Tensor column = at::arange(columns, rows.options());
  const Tensor indices = at::stack({rows.unsqueeze(1).expand({-1, columns}).reshape({-1}),
                                    column.unsqueeze(0).expand({rows.size(0), -1}).reshape({-1})});
  return assign_contents(
      out, at::_sparse_coo_tensor_with_dims_and_tensors(
               2, 0, self.sizes(), at::cat({self._indices(), indices}, 1),
               at::cat({self._values().mul(beta), values.mul(alpha).reshape({-1})}), self.options(), false));
}

// beta * self + alpha * (mat1 @ mat2), at the elements of `self`.
static Tensor sampled_addmm(const Tensor& self, const Tensor& mat1, const Tensor& mat2, const Scalar& beta,
                            const Scalar& alpha) {
  TORCH_CHECK(self.layout() == at::kSparseCsr, "sampled_addmm: Expected result to have sparse csr layout, but got ",
              self.layout());
  TORCH_CHECK(mat1.layout() == at::kStrided && mat2.layout() == at::kStrided,
              "sampled_addmm: Expected mat1 and mat2 to have strided layout, but got ", mat1.layout(), " and ",
              mat2.layout());
  TORCH_CHECK(mat1.scalar_type() == mat2.scalar_type() && mat1.scalar_type() == self.scalar_type(),
              "sampled_addmm: Expected self, mat1 and mat2 to have the same dtype, but got ", self.scalar_type(), ", ",
              mat1.scalar_type(), " and ", mat2.scalar_type());
  TORCH_CHECK(mat1.dim() == self.dim() && mat2.dim() == self.dim() &&
                  self.sizes().slice(0, self.dim() - 2) == mat1.sizes().slice(0, self.dim() - 2) &&
                  self.sizes().slice(0, self.dim() - 2) == mat2.sizes().slice(0, self.dim() - 2),
              "sampled_addmm: Expected self, mat1 and mat2 to have the same batch dims, but got ", self.sizes(), ", ",
              mat1.sizes(), " and ", mat2.sizes());
  TORCH_CHECK(mat1.size(-1) == mat2.size(-2), "sampled_addmm: mat1 and mat2 shapes cannot be multiplied (",
              mat1.size(-2), "x", mat1.size(-1), " and ", mat2.size(-2), "x", mat2.size(-1), ")");
  TORCH_CHECK(self.size(-2) == mat1.size(-2), "sampled_addmm: self.shape[-2] must match mat1.shape[-2]");
  TORCH_CHECK(self.size(-1) == mat2.size(-1), "sampled_addmm: self.shape[-1] must match mat2.shape[-1]");
  const SparseElements of = elements_of(self);
  const Tensor values = self.values();
  const Tensor left = mat1.reshape({-1, mat1.size(-1)}).index_select(0, of.rows);
  const Tensor right = mat2.transpose(-2, -1).reshape({-1, mat1.size(-1)}).index_select(0, of.columns);
  return with_values(self, scaled_sum(values, left.mul(right).sum(-1).view(values.sizes()), beta, alpha));
}

// -- matmuls with other reductions ------------------------------------------------------------------------------------

using at::native::ReductionType;

static bool is_added_up(ReductionType kind) { return kind == ReductionType::SUM || kind == ReductionType::MEAN; }

// The number of elements in each row, at least 1, as a column.
static Tensor counts_of(const Tensor& self) {
  const Tensor ends = self.crow_indices();
  return ends.slice(0, 1).sub(ends.slice(0, 0, -1)).clamp_min(1).unsqueeze(1);
}

// The matmul of a CSR matrix and a strided one, where `reduce` takes the place of addition: sum, mean, maximum or
// minimum. The second result is for the backward pass. For a maximum or minimum it has the size of the first result. It
// then has the number of the element of `self` that each result comes from, or nnz if the row of `self` has no
// elements. For other reductions, and if no operand requires gradients, it is empty.
static std::tuple<Tensor, Tensor> mm_reduce(const Tensor& self, const Tensor& other, c10::string_view reduce) {
  TORCH_CHECK(self.layout() == at::kSparseCsr, "sparse_mm_reduce: expect self to be SparseCsr, got ", self.layout());
  TORCH_CHECK(other.layout() == at::kStrided, "sparse_mm_reduce: expect other to be Strided, got ", other.layout());
  const ReductionType kind = at::native::get_reduction_enum(reduce);
  TORCH_CHECK(kind != ReductionType::PROD, "sparse_mm_reduce: reduce type of ", reduce, " has not been enabled.");
  TORCH_CHECK(self.dim() == 2 && other.dim() == 2 && self.size(1) == other.size(0),
              "sparse_mm_reduce: mat1 and mat2 shapes cannot be multiplied (", self.sizes(), " and ", other.sizes(),
              ")");
  Tensor from = at::empty({0}, other.options().dtype(at::kLong));
  if (is_added_up(kind)) {
    const Tensor sum = times(self, other).squeeze(0);
    return {kind == ReductionType::SUM ? sum : sum.div(counts_of(self)), from};
  }
  const SparseElements of = elements_of(self);
  const Tensor terms = other.index_select(0, of.columns).mul(of.values.view({-1, 1}));
  const Tensor row = of.rows.unsqueeze(1).expand_as(terms);
  const Tensor found =
      at::zeros({self.size(0), other.size(1)}, terms.options()).scatter_reduce_(0, row, terms, reduce, false);
  if (self.requires_grad() || other.requires_grad()) {
    const int64_t count = terms.size(0);
    const Tensor is_it = terms.eq(found.index_select(0, of.rows)).logical_or_(terms.isnan());
    const Tensor number = at::arange(count, of.rows.options()).unsqueeze(1);
    const Tensor numbers = at::where(is_it, number, at::full({}, count, number.options()));
    from = at::full(found.sizes(), count, number.options()).scatter_reduce_(0, row, numbers, "amin");
  }
  return {found, from};
}

// The gradients of `self` and `other`; undefined where `wanted` is false. `from` is the second result of mm_reduce().
static std::tuple<Tensor, Tensor> mm_reduce_backward(const Tensor& self, const Tensor& grad, const Tensor& other,
                                                     c10::string_view reduce, const Tensor& from,
                                                     std::array<bool, 2> wanted) {
  const SparseElements of = elements_of(self);
  const Tensor values = of.values.view({-1});
  Tensor of_self, of_other;
  if (const ReductionType kind = at::native::get_reduction_enum(reduce); is_added_up(kind)) {
    const Tensor each = kind == ReductionType::SUM ? grad : grad.div(counts_of(self));
    const Tensor terms = each.index_select(0, of.rows);
    if (wanted[0]) of_self = with_values(self, terms.mul(other.index_select(0, of.columns)).sum(1));
    if (wanted[1]) of_other = at::zeros_like(other).index_add_(0, of.columns, terms.mul(values.unsqueeze(1)));
    return {of_self, of_other};
  }
  // Appends a zero, which rows without elements refer to.
  const auto with_none = [](const Tensor& each) { return at::cat({each, at::zeros({1}, each.options())}); };
  const Tensor place = from.reshape({-1});
  const Tensor column = with_none(of.columns).index_select(0, place).view(from.sizes());
  if (wanted[0]) {
    const Tensor terms = grad.mul(other.gather(0, column)).reshape({-1});
    of_self = with_values(self, with_none(at::zeros_like(values)).index_add_(0, place, terms).slice(0, 0, -1).clone());
  }
  if (wanted[1]) {
    const Tensor terms = grad.mul(with_none(values).index_select(0, place).view(from.sizes()));
    of_other = at::zeros_like(other).scatter_add_(0, column, terms);
  }
  return {of_self, of_other};
}

static void register_matmuls(torch::Library& library) {
  library.impl("addmm", &sparse_addmm);
  library.impl("addmm.out", &sparse_addmm_out);
  library.impl("mv", &matrix_vector);
  library.impl("addmv.out", &sparse_addmv_out);
  library.impl("bmm", &sparse_bmm);
  library.impl("baddbmm", &sparse_baddbmm);
}

TORCH_LIBRARY_IMPL(aten, SparsePrivateUse1, library) {
  register_matmuls(library);
  library.impl("addmm_", &sparse_addmm_in_place);
  library.impl("_sparse_sparse_matmul", &sparse_sparse_mm);
  library.impl("hspmm", &sparse_hspmm);
  library.impl("sspaddmm.out", &sparse_sspaddmm_out);
  library.impl("_sparse_softmax", &softmax<false>);
  library.impl("_sparse_log_softmax", &softmax<true>);
  library.impl("_sparse_softmax_backward_data", &softmax_backward<false>);
  library.impl("_sparse_log_softmax_backward_data", &softmax_backward<true>);
}

TORCH_LIBRARY_IMPL(aten, SparseCsrPrivateUse1, library) {
  register_matmuls(library);
  library.impl("sparse_sampled_addmm", &sampled_addmm);
  library.impl("_sparse_mm_reduce_impl", &mm_reduce);
  library.impl("_sparse_mm_reduce_impl_backward", &mm_reduce_backward);
}

}  // namespace torch_remote::frontend::sparse
