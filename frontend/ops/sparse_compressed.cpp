#include <ATen/SparseCsrTensorUtils.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_sparse_compressed_tensor_unsafe.h>
#include <ATen/ops/_unique2.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/argsort.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/repeat_interleave.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <array>
#include <optional>
#include <vector>

#include "frontend/ops/sparse.h"

// CSR, CSC, BSR and BSC, and batches of these. Where it suffices, they are converted to COO.
namespace torch_remote::frontend::sparse {

using at::sparse_csr::getCompressedPlainIndices;
using at::sparse_csr::is_sparse_compressed;

static bool is_by_rows(at::Layout layout) { return layout == at::kSparseCsr || layout == at::kSparseBsr; }
static bool is_in_blocks(at::Layout layout) { return layout == at::kSparseBsr || layout == at::kSparseBsc; }

static Tensor as_coo(const Tensor& tensor) { return is_sparse_compressed(tensor) ? tensor.to_sparse() : tensor; }

static int64_t batch_dims(const Tensor& matrix) { return getCompressedPlainIndices(matrix).first.dim() - 1; }

static std::array<int64_t, 2> block_of(const Tensor& matrix) {
  if (!is_in_blocks(matrix.layout())) return {1, 1};
  const int64_t dim = batch_dims(matrix) + 1;
  return {matrix.values().size(dim), matrix.values().size(dim + 1)};
}

// The index of each element along the compressed dim, in [0, batches * lines): the batches follow each other.
static Tensor lines_of(const Tensor& compressed, const Tensor& plain) {
  const int64_t lines = compressed.size(-1) - 1;
  const Tensor counts = compressed.slice(-1, 1).sub(compressed.slice(-1, 0, lines)).to(at::kLong).reshape({-1});
  return at::repeat_interleave(at::arange(counts.size(0), counts.options()), counts, 0, plain.numel());
}

SparseElements elements_of(const Tensor& matrix) {
  SparseElements elements;
  if (matrix.is_sparse()) {
    const int64_t rank = matrix.sparse_dim();
    TORCH_CHECK(matrix.dense_dim() == 0 && rank == matrix.dim() && (rank == 2 || rank == 3),
                "addmm: Argument #2: matrices expected, got a tensor of ", rank, " sparse and ", matrix.dense_dim(),
                " dense dims");
    const Tensor indices = matrix._indices();
    elements.rows = indices.select(0, rank - 2);
    elements.columns = indices.select(0, rank - 1);
    elements.values = matrix._values().view({-1, 1, 1});
    if (rank == 3) {
      elements.batches = matrix.size(0);
      elements.rows = indices.select(0, 0).mul(matrix.size(1)).add(elements.rows);
      elements.columns = indices.select(0, 0).mul(matrix.size(2)).add(elements.columns);
    }
    return elements;
  }
  const auto [compressed, plain] = getCompressedPlainIndices(matrix);
  const bool by_rows = is_by_rows(matrix.layout());
  const auto block = block_of(matrix);
  const int64_t batched = batch_dims(matrix), lines = compressed.size(-1) - 1;
  const int64_t others = by_rows ? matrix.size(batched + 1) / block[1] : matrix.size(batched) / block[0];
  for (int64_t d = 0; d < batched; ++d) elements.batches *= matrix.size(d);
  const Tensor line = lines_of(compressed, plain);
  Tensor other = plain.reshape({-1}).to(at::kLong);
  if (elements.batches > 1) other = line.div(lines, "floor").mul(others).add(other);
  elements.rows = by_rows ? line : other;
  elements.columns = by_rows ? other : line;
  elements.block = block;
  std::vector<int64_t> sizes = {plain.numel(), block[0], block[1]};
  const int64_t first_dense = batched + 1 + (is_in_blocks(matrix.layout()) ? 2 : 0);
  const Tensor values = matrix.values();
  sizes.insert(sizes.end(), values.sizes().begin() + first_dense, values.sizes().end());
  elements.values = values.reshape(sizes);
  return elements;
}

// `type` must be empty; the last parameter, `masked_grad`, has no effect.
static Tensor compressed_to_dense(const Tensor& self, std::optional<at::ScalarType> type, std::optional<bool>) {
  TORCH_CHECK(!type.has_value(), "dtype argument is not supported by sparse_csr_to_dense");
  const SparseElements of = elements_of(self);
  const int64_t batched = batch_dims(self);
  const int64_t rows = self.size(batched) / of.block[0], columns = self.size(batched + 1) / of.block[1];
  const Tensor column = of.batches > 1 ? of.columns.remainder(columns) : of.columns;
  const Tensor blocks = sum_rows_by_index(of.values, of.rows.mul(columns).add(column), of.batches * rows * columns);
  std::vector<int64_t> sizes = {of.batches * rows, columns, of.block[0], of.block[1]};
  sizes.insert(sizes.end(), of.values.sizes().begin() + 3, of.values.sizes().end());
  return blocks.view(sizes).transpose(1, 2).reshape(self.sizes());
}

// The CSR row pointers of elements that are sorted by row: the number of elements before each of `size` rows, followed
// by the total. They are int32 or int64.
static Tensor to_csr(const Tensor& rows, int64_t size, bool int32) {
  const Tensor begins = at::arange(size + 1, rows.options());
  return at::searchsorted(rows.contiguous(), begins, int32);
}

// Converts a COO, CSR or CSC matrix to blocks.
static Tensor in_blocks(const Tensor& self, at::Layout layout, IntArrayRef block) {
  TORCH_CHECK(self.dim() == 2, "remote: only matrices can be converted to sparse blocks, got sizes ", self.sizes(),
              "; call to_dense() first");
  TORCH_CHECK(block.size() == 2 && block[0] > 0 && block[1] > 0,
              "blocksize needs to be a tuple of two positive numbers, got ", block);
  TORCH_CHECK(self.size(0) % block[0] == 0 && self.size(1) % block[1] == 0, "tensor sparse size (", self.size(0), ",",
              self.size(1), ") must be divisible by given blocksize (", block[0], ",", block[1], ")");
  const at::ScalarType type =
      is_sparse_compressed(self) ? getCompressedPlainIndices(self).second.scalar_type() : at::kLong;
  const Tensor elements = coalesce(as_coo(self));
  TORCH_CHECK(elements.dense_dim() == 0,
              "remote: a sparse tensor with dense dims cannot be converted to sparse blocks");
  const bool by_rows = is_by_rows(layout);
  const Tensor row = elements._indices().select(0, 0), column = elements._indices().select(0, 1);
  const int64_t lines = by_rows ? self.size(0) / block[0] : self.size(1) / block[1];
  const int64_t others = by_rows ? self.size(1) / block[1] : self.size(0) / block[0];
  const Tensor block_row = row.div(block[0], "floor"), block_column = column.div(block[1], "floor");
  const Tensor number = (by_rows ? block_row : block_column).mul(others).add(by_rows ? block_column : block_row);
  const auto [found, which, counts] = at::_unique2(number, /*sorted=*/true, /*return_inverse=*/true);
  const Tensor inside = row.remainder(block[0]).mul(block[1]).add(column.remainder(block[1]));
  const Tensor values = sum_rows_by_index(elements._values(), which.mul(block[0] * block[1]).add(inside),
                                          found.size(0) * block[0] * block[1]);
  return at::_sparse_compressed_tensor_unsafe(
      to_csr(found.div(others, "floor"), lines, type == at::kInt), found.remainder(others).to(type),
      values.view({found.size(0), block[0], block[1]}), self.sizes(), values.options().layout(layout));
}

// The same elements, or blocks, compressed along the other dim.
static Tensor compressed_along_other_dim(const Tensor& self, at::Layout layout) {
  const auto [compressed, plain] = getCompressedPlainIndices(self);
  const SparseElements of = elements_of(self);
  const bool by_rows = is_by_rows(self.layout());
  const int64_t dim = batch_dims(self), lines = compressed.size(-1) - 1, each = plain.size(-1);
  const int64_t others = by_rows ? self.size(dim + 1) / of.block[1] : self.size(dim) / of.block[0];
  const Tensor &line = by_rows ? of.rows : of.columns, &other = by_rows ? of.columns : of.rows;
  const Tensor line_of_one = of.batches > 1 ? line.remainder(lines) : line;
  const Tensor order = at::argsort(other.mul(lines).add(line_of_one), /*stable=*/true, 0, /*descending=*/false);
  const Tensor before = to_csr(other.index_select(0, order), of.batches * others, false);
  // Each batch counts from 0.
  const Tensor batch = at::arange(of.batches, before.options()).unsqueeze(1);
  const Tensor at = batch.mul(others).add(at::arange(others + 1, before.options()));
  const Tensor begins = before.index_select(0, at.view({-1})).view({of.batches, others + 1}).sub(batch.mul(each));
  std::vector<int64_t> sizes = compressed.sizes().vec();
  sizes.back() = others + 1;
  const Tensor values = self.values();
  return at::_sparse_compressed_tensor_unsafe(
      begins.view(sizes).to(compressed.scalar_type()),
      line_of_one.index_select(0, order).view(plain.sizes()).to(plain.scalar_type()),
      values.flatten(0, dim).index_select(0, order).view(values.sizes()), self.sizes(),
      values.options().layout(layout));
}

// Converts between CSR and CSC. The last parameter, `dense_dim`, has no effect.
template <at::Layout layout>
static Tensor to_compressed(const Tensor& self, std::optional<int64_t>) {
  TORCH_CHECK(!is_in_blocks(self.layout()), "sparse_compressed_to_", layout,
              ": expected SparseCsr or SparseCsc layout but got ", self.layout());
  return self.layout() == layout ? self.clone() : compressed_along_other_dim(self, layout);
}

// Converts a matrix in COO, CSR or CSC to BSR or BSC. Between BSR and BSC, `block` must stay the same. The last
// parameter, `dense_dim`, has no effect.
template <at::Layout layout>
static Tensor to_blocks(const Tensor& self, IntArrayRef block, std::optional<int64_t>) {
  if (!is_in_blocks(self.layout())) return in_blocks(self, layout, block);
  TORCH_CHECK(block == IntArrayRef(block_of(self)), "conversion from ", self.layout(), " to ", layout,
              " with blocksize changed from ", IntArrayRef(block_of(self)), " to ", block, " is not supported");
  return self.layout() == layout ? self.clone() : compressed_along_other_dim(self, layout);
}

// Converts a COO result to the layout of an operand.
static Tensor like(const Tensor& matrix, const Tensor& coo) {
  return is_in_blocks(matrix.layout()) ? in_blocks(coo, matrix.layout(), block_of(matrix))
                                       : coo.to_sparse(matrix.layout());
}

Tensor with_values(const Tensor& self, const Tensor& values) {
  const auto [compressed, plain] = getCompressedPlainIndices(self);
  return at::_sparse_compressed_tensor_unsafe(compressed.clone(), plain.clone(), values, self.sizes(),
                                              values.options().layout(self.layout()));
}

// Element-wise operations and matmuls with at least one compressed operand. If `self` of compressed_add() is
// compressed, `other` must have the same layout. In a sum of batches, both must also have the same indices.
static Tensor compressed_mul(const Tensor& self, const Tensor& other) {
  const Tensor &matrix = is_sparse_compressed(self) ? self : other, &factor = is_sparse_compressed(self) ? other : self;
  if (factor.dim() == 0) return with_values(matrix, matrix.values().mul(as_coo(factor)));
  return like(matrix, multiplied(as_coo(self), as_coo(other)));
}

static Tensor compressed_mul_by_number(const Tensor& self, const Scalar& other) {
  return with_values(self, self.values().mul(other));
}

// All matrices of a batch must have the same number of elements. A sum is sure to have that only if both operands have
// the same indices.
static Tensor sum_of_batches(const Tensor& self, const Tensor& other, const Scalar& alpha) {
  const auto [compressed, plain] = getCompressedPlainIndices(self);
  const auto [other_compressed, other_plain] = getCompressedPlainIndices(other);
  TORCH_CHECK(self.sizes() == other.sizes() && block_of(self) == block_of(other) &&
                  at::equal(compressed, other_compressed) && at::equal(plain, other_plain),
              "remote: add of batches of compressed sparse tensors needs elements at the same indices in both; call "
              "to_dense() on one of them");
  return with_values(self, self.values().add(other.values(), alpha));
}

static Tensor compressed_add(const Tensor& self, const Tensor& other, const Scalar& alpha) {
  if (!is_sparse_compressed(self)) return added(self, as_coo(other), alpha);
  TORCH_CHECK(self.layout() == other.layout(), "remote: add of layouts ", self.layout(), " and ", other.layout(),
              " is not supported; convert one of them with to_sparse() or to_dense()");
  if (batch_dims(self) > 0) return sum_of_batches(self, other, alpha);
  return like(self, added(coalesce(as_coo(self)), coalesce(as_coo(other)), alpha));
}

static Tensor compressed_mm(const Tensor& self, const Tensor& other) {
  if (is_sparse_compressed(self) && is_sparse_compressed(other)) {
    TORCH_CHECK(!is_in_blocks(self.layout()) && !is_in_blocks(other.layout()),
                "remote: the matmul of two sparse tensors in blocks is not supported; convert one with to_sparse() or "
                "to_dense()");
    return sparse_sparse_mm(as_coo(self), as_coo(other)).to_sparse(self.layout());
  }
  if (is_sparse_compressed(self)) return sparse_addmm(other, self, other, 0, 1);
  const Tensor left = self.t();
  return sparse_addmm(left, other.t(), left, 0, 1).t();
}

// The COO indices of CSR indices, as int32 or int64: [batch dims + 2, elements]. With `transpose`, columns come before
// rows.
static Tensor to_coo(const Tensor& crow, const Tensor& columns, bool int32, bool transpose) {
  const auto type = int32 ? at::kInt : at::kLong;
  const int64_t lines = crow.size(-1) - 1;
  const Tensor line = lines_of(crow, columns), column = columns.reshape({-1}).to(type);
  std::vector<Tensor> all(static_cast<size_t>(crow.dim()) + 1);
  Tensor batch = line.div(lines, "floor");
  for (int64_t d = crow.dim() - 2; d >= 0; --d) {
    all[d] = batch.remainder(crow.size(d)).to(type);
    batch = batch.div(crow.size(d), "floor");
  }
  const Tensor row = (crow.dim() > 1 ? line.remainder(lines) : line).to(type);
  all[all.size() - 2] = transpose ? column : row;
  all[all.size() - 1] = transpose ? row : column;
  return at::stack(all);
}

// The checks of _validate_compressed_sparse_indices, for which torch's implementation reads memory. Raises if one
// fails. `compressed` has the row pointers and `plain` the column indices, or the reverse if `is_row_major` is false.
// `compressed_size` and `plain_size` are the sizes of these two dims, and `nnz` is the number of elements of each
// matrix.
static void validate(bool is_row_major, const Tensor& compressed, const Tensor& plain, int64_t compressed_size,
                     int64_t plain_size, int64_t nnz) {
  const char* names[2] = {is_row_major ? "crow_indices" : "ccol_indices", is_row_major ? "col_indices" : "row_indices"};
  const Tensor first = compressed.select(-1, 0), last = compressed.select(-1, compressed_size);
  const Tensor steps = compressed.diff();
  std::vector<Tensor> wrong = {first.ne(0).any(), last.ne(nnz).any(),
                               steps.lt(0).logical_or(steps.gt(plain_size)).any()};
  wrong.push_back(nnz == 0 ? at::zeros({}, wrong[0].options()) : plain.lt(0).logical_or(plain.ge(plain_size)).any());
  const Tensor found = at::stack(wrong).cpu();
  const bool* is = found.const_data_ptr<bool>();
  TORCH_CHECK(!is[0], "`", names[0], "[..., 0] == 0` is not satisfied.");
  TORCH_CHECK(!is[1], "`", names[0], "[..., -1] == nnz` is not satisfied.");
  TORCH_CHECK(!is[2], "`0 <= ", names[0], "[..., 1:] - ", names[0], "[..., :-1] <= plain_dim` is not satisfied.");
  TORCH_CHECK(!is[3], "`0 <= ", names[1], " < plain_dim` is not satisfied.");
}

static void register_blocks(torch::Library& library) {
  library.impl("_to_sparse_bsr", &to_blocks<at::kSparseBsr>);
  library.impl("_to_sparse_bsc", &to_blocks<at::kSparseBsc>);
}

TORCH_LIBRARY_IMPL(aten, SparsePrivateUse1, library) { register_blocks(library); }

TORCH_LIBRARY_IMPL(aten, SparseCsrPrivateUse1, library) {
  register_blocks(library);
  library.impl("add.Tensor", &compressed_add);
  library.impl("mul.Tensor", &compressed_mul);
  library.impl("mul.Scalar", &compressed_mul_by_number);
  library.impl("mm", &compressed_mm);
  library.impl("_to_dense", &compressed_to_dense);
  library.impl("_to_sparse_csr", &to_compressed<at::kSparseCsr>);
  library.impl("_to_sparse_csc", &to_compressed<at::kSparseCsc>);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("_convert_indices_from_coo_to_csr", &to_csr);
  library.impl("_convert_indices_from_csr_to_coo", &to_coo);
  library.impl("_validate_compressed_sparse_indices", &validate);
}

}  // namespace torch_remote::frontend::sparse
