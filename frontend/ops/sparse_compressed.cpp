#include <ATen/ATen.h>
#include <ATen/SparseCsrTensorUtils.h>

#include <algorithm>
#include <vector>

#include "frontend/ops/sparse.h"

// CSR and CSC: as COO where that is enough.
namespace torch_remote::frontend::sparse {

static bool is_compressed(const Tensor& tensor) { return at::sparse_csr::is_sparse_compressed(tensor); }
static Tensor as_coo(const Tensor& tensor) { return is_compressed(tensor) ? tensor.to_sparse() : tensor; }

static Tensor with_values(const Tensor& self, const Tensor& values) {
  const bool by_rows = self.layout() == at::kSparseCsr;
  return at::_sparse_compressed_tensor_unsafe(by_rows ? self.crow_indices().clone() : self.ccol_indices().clone(),
                                              by_rows ? self.col_indices().clone() : self.row_indices().clone(), values,
                                              self.sizes(), values.options().layout(self.layout()));
}

Tensor compressed_multiplied(const Tensor& self, const Tensor& other) {
  const Tensor &matrix = is_compressed(self) ? self : other, &factor = is_compressed(self) ? other : self;
  if (factor.dim() == 0) return with_values(matrix, matrix.values().mul(as_coo(factor)));
  const Tensor product = multiplied(as_coo(self), as_coo(other));
  return product.to_sparse(matrix.layout());
}

Tensor compressed_multiplied_by_number(const Tensor& self, const Scalar& other) {
  return with_values(self, self.values().mul(other));
}

Tensor compressed_sum(const Tensor& self, const Tensor& other, const Scalar& alpha) {
  if (!is_compressed(self)) return sum_of(self, as_coo(other), alpha);
  TORCH_CHECK(self.layout() == other.layout(), "remote: add of layouts ", self.layout(), " and ", other.layout(),
              " is not there; to_sparse() and to_dense() make them one");
  return sum_of(coalesce(as_coo(self)), coalesce(as_coo(other)), alpha).to_sparse(self.layout());
}

Tensor compressed_product(const Tensor& self, const Tensor& other) {
  if (is_compressed(self) && is_compressed(other)) {
    return sparse_product(as_coo(self), as_coo(other)).to_sparse(self.layout());
  }
  if (is_compressed(self)) return product(other, self, other, 0, 1);
  const Tensor left = self.t();
  return product(left, other.t(), left, 0, 1).t();
}

// How many of the rows of sorted elements lie before each row, and all.
Tensor to_csr(const Tensor& rows, int64_t size, bool int32) {
  const Tensor begins = at::arange(size + 1, rows.options());
  return at::searchsorted(rows.contiguous(), begins, int32);
}

Tensor to_coo(const Tensor& crow, const Tensor& columns, bool int32, bool transpose) {
  const auto type = int32 ? at::kInt : at::kLong;
  const int64_t rows = crow.size(-1) - 1, batches = crow.numel() / std::max<int64_t>(crow.size(-1), 1);
  TORCH_CHECK(crow.dim() == 1 && batches == 1, "remote: batches of compressed sparse tensors are not there");
  const Tensor counts = crow.slice(0, 1).sub(crow.slice(0, 0, rows)).to(at::kLong);
  const Tensor row = at::repeat_interleave(at::arange(rows, crow.options().dtype(type)), counts, 0, columns.size(0));
  const Tensor column = columns.to(type);
  return transpose ? at::stack({column, row}) : at::stack({row, column});
}

// What torch's own looks at in memory.
void validate(bool is_row_major, const Tensor& compressed, const Tensor& plain, int64_t compressed_size,
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

}  // namespace torch_remote::frontend::sparse
