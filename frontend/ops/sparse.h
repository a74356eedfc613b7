#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <utility>

// Sparse tensors are torch's own classes, whose indices and values are tensors of this device. Most of torch's kernels
// for them only call ops on these tensors; sparse.cpp lists these kernels, which run unchanged. The other files
// reimplement the kernels that access memory with such ops, and register them. All other ops raise (layouts.cpp). This
// header has the functions that these files share.
//
// Indices are int64 with the shape [sparse dims, elements]; values have [elements, dense dims...]. Ops whose number of
// result elements depends on data wait for the worker: coalescing, joins, matmuls of two sparse tensors. Checks of data
// wait for it, too: validate(), select_index() and compressed_add() of batches.
namespace torch_remote::frontend::sparse {

using at::IntArrayRef;
using at::Scalar;
using at::Tensor;

// A COO tensor with the sizes and the sparse dims of `like`. `coalesced`: the indices are sorted and unique.
Tensor make_coo(const Tensor& like, const Tensor& indices, const Tensor& values, bool coalesced);
// The elements' linear positions in the sparse dims, in row-major order.
Tensor linear_positions(const Tensor& indices, IntArrayRef sizes);
// rows[index[i]] += values[i], for `count` rows. For bool the sum is a logical or, like torch's addition.
Tensor sum_rows_by_index(const Tensor& values, const Tensor& index, int64_t count);
Tensor coalesce(const Tensor& self);
// Replaces the contents of `self` by the indices and values of `other`.
Tensor& assign_contents(Tensor& self, const Tensor& other);
// self + alpha * other, and self * other.
Tensor added(const Tensor& self, const Tensor& other, const Scalar& alpha);
Tensor multiplied(const Tensor& self, const Tensor& other);
// `condition`, one per element, as a view [elements, 1, 1, ...] that broadcasts over `values`.
Tensor along_first_dim(const Tensor& condition, const Tensor& values);
// A tensor with the indices of `mask` and the elements of `self` there: 0 where a sparse `self` has none. `self` is
// strided or COO.
Tensor mask(const Tensor& self, const Tensor& mask);
// For each element of `wanted`, finds all its positions in `keys`, which need not be sorted. Returns two tensors with
// the pairs (index in `wanted`, position in `keys`), ordered by the index.
std::pair<Tensor, Tensor> join(const Tensor& wanted, const Tensor& keys);
// The elements of a sparse matrix, or of a batch of them, in COO or a compressed layout. In BSR and BSC each entry is a
// block of elements; in other layouts it is one element, a block of [1, 1]. Rows and columns count blocks, over the
// whole batch: row r of matrix b has the number b * (rows of a matrix) + r. Columns are numbered in the same way.
struct SparseElements {
  Tensor rows, columns;                   // int64 [entries]
  Tensor values;                          // [entries, rows of a block, columns of a block, dense dims...]
  std::array<int64_t, 2> block = {1, 1};  // rows and columns of a block
  int64_t batches = 1;
};
SparseElements elements_of(const Tensor& matrix);
// A compressed tensor with the same indices and other values.
Tensor with_values(const Tensor& self, const Tensor& values);
// beta * self + alpha * (mat1 @ mat2), where one of the matrices is sparse.
Tensor sparse_addmm(const Tensor& self, const Tensor& mat1, const Tensor& mat2, const Scalar& beta,
                    const Scalar& alpha);
Tensor sparse_sparse_mm(const Tensor& self, const Tensor& other);

}  // namespace torch_remote::frontend::sparse
