#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/string_view.h>

#include <array>
#include <optional>
#include <tuple>
#include <utility>

// Sparse tensors are torch's own classes, whose indices and values are tensors of this device. Most of torch's kernels
// for them only call ops on these tensors; sparse.cpp lists these kernels, which run unchanged. The kernels that access
// memory are reimplemented here with such ops. All other ops raise (layouts.cpp).
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
// self + alpha * other, self - alpha * other and self * other, with their in-place and out overloads.
Tensor added(const Tensor& self, const Tensor& other, const Scalar& alpha);
Tensor& add_to(Tensor& self, const Tensor& other, const Scalar& alpha);
Tensor& sum_out(const Tensor& self, const Tensor& other, const Scalar& alpha, Tensor& out);
Tensor difference(const Tensor& self, const Tensor& other, const Scalar& alpha);
Tensor& subtract(Tensor& self, const Tensor& other, const Scalar& alpha);
Tensor& difference_out(const Tensor& self, const Tensor& other, const Scalar& alpha, Tensor& out);
Tensor multiplied(const Tensor& self, const Tensor& other);
Tensor& multiply(Tensor& self, const Tensor& other);
Tensor& multiplied_out(const Tensor& self, const Tensor& other, Tensor& out);
// `condition`, one per element, as a view [elements, 1, 1, ...] that broadcasts over `values`.
Tensor along_first_dim(const Tensor& condition, const Tensor& values);
// A tensor with the indices of `mask` and the elements of `self` there: 0 where a sparse `self` has none. `self` is
// strided or COO.
Tensor mask(const Tensor& self, const Tensor& mask);
// _sparse_mask_projection: the same as mask(), for both values of `accumulate_matches`.
Tensor project(const Tensor& self, const Tensor& onto, bool accumulate_matches);
// For each element of `wanted`, finds all its positions in `keys`, which need not be sorted. Returns two tensors with
// the pairs (index in `wanted`, position in `keys`), ordered by the index.
std::pair<Tensor, Tensor> join(const Tensor& wanted, const Tensor& keys);
// index_select. Raises an IndexError if `index` is out of range along a sparse dim.
Tensor select_index(const Tensor& self, int64_t dim, const Tensor& index);
// The gradient of a sum over `dims`: each element gets the gradient of the element that it was added to.
Tensor sum_backward(const Tensor& grad, const Tensor& self, IntArrayRef dims);
// Softmax over the elements that a COO tensor has, or log softmax. `half_to_float` has no effect, nor has the last
// parameter of the backward function.
template <bool log>
Tensor softmax(const Tensor& given, int64_t dim, bool half_to_float);
template <bool log>
Tensor softmax_backward(const Tensor& grad, const Tensor& output, int64_t dim, const Tensor&);
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
// beta * self + alpha * (mat1 @ mat2), where one of the matrices is sparse. sparse_baddbmm() is the same for batches of
// matrices.
Tensor sparse_addmm(const Tensor& self, const Tensor& mat1, const Tensor& mat2, const Scalar& beta,
                    const Scalar& alpha);
Tensor& sparse_addmm_out(const Tensor& self, const Tensor& mat1, const Tensor& mat2, const Scalar& beta,
                         const Scalar& alpha, Tensor& out);
Tensor& sparse_addmm_in_place(Tensor& self, const Tensor& mat1, const Tensor& mat2, const Scalar& beta,
                              const Scalar& alpha);
Tensor sparse_baddbmm(const Tensor& self, const Tensor& batch1, const Tensor& batch2, const Scalar& beta,
                      const Scalar& alpha);
Tensor sparse_bmm(const Tensor& self, const Tensor& other);
// The matmul of a sparse matrix and a vector.
Tensor matrix_vector(const Tensor& self, const Tensor& vector);
Tensor& sparse_addmv_out(const Tensor& self, const Tensor& matrix, const Tensor& vector, const Scalar& beta,
                         const Scalar& alpha, Tensor& out);
Tensor sparse_sparse_mm(const Tensor& self, const Tensor& other);
// A sparse matrix times a strided one (hspmm). The result has only the rows that have elements, each as a dense row.
Tensor sparse_hspmm(const Tensor& mat1, const Tensor& mat2);
// beta * self + alpha * (mat1 @ mat2) as a sparse tensor (sspaddmm).
Tensor& sparse_sspaddmm_out(const Tensor& self, const Tensor& mat1, const Tensor& mat2, const Scalar& beta,
                            const Scalar& alpha, Tensor& out);
// beta * self + alpha * (mat1 @ mat2), at the elements of `self`.
Tensor sampled_addmm(const Tensor& self, const Tensor& mat1, const Tensor& mat2, const Scalar& beta,
                     const Scalar& alpha);
// The matmul of a CSR matrix and a strided one, where `reduce` takes the place of addition: sum, mean, maximum or
// minimum. The second result is for the backward pass. For a maximum or minimum it has the size of the first result. It
// then has the number of the element of `self` that each result comes from, or nnz if the row of `self` has no
// elements. For other reductions, and if no operand requires gradients, it is empty.
std::tuple<Tensor, Tensor> mm_reduce(const Tensor& self, const Tensor& other, c10::string_view reduce);
// The gradients of `self` and `other`; undefined where `wanted` is false. `from` is the second result of mm_reduce().
std::tuple<Tensor, Tensor> mm_reduce_backward(const Tensor& self, const Tensor& grad, const Tensor& other,
                                              c10::string_view reduce, const Tensor& from, std::array<bool, 2> wanted);
// `type` must be empty; `masked_grad` has no effect.
Tensor compressed_to_dense(const Tensor& self, std::optional<at::ScalarType> type, std::optional<bool> masked_grad);
// Converts between CSR and CSC. `dense_dim` has no effect.
template <at::Layout layout>
Tensor to_compressed(const Tensor& self, std::optional<int64_t> dense_dim);
// Converts a matrix in COO, CSR or CSC to BSR or BSC. Between BSR and BSC, `block` must stay the same. `dense_dim` has
// no effect.
template <at::Layout layout>
Tensor to_blocks(const Tensor& self, IntArrayRef block, std::optional<int64_t> dense_dim);
// Element-wise operations and matmuls with at least one compressed operand. If `self` of compressed_add() is
// compressed, `other` must have the same layout. In a sum of batches, both must also have the same indices.
Tensor compressed_mul(const Tensor& self, const Tensor& other);
Tensor compressed_mul_by_number(const Tensor& self, const Scalar& other);
Tensor compressed_add(const Tensor& self, const Tensor& other, const Scalar& alpha);
Tensor compressed_mm(const Tensor& self, const Tensor& other);
// The CSR row pointers of elements that are sorted by row: the number of elements before each of `size` rows, followed
// by the total. They are int32 or int64.
Tensor to_csr(const Tensor& rows, int64_t size, bool int32);
// The COO indices of CSR indices, as int32 or int64: [batch dims + 2, elements]. With `transpose`, columns come before
// rows.
Tensor to_coo(const Tensor& crow, const Tensor& columns, bool int32, bool transpose);
// The checks of _validate_compressed_sparse_indices, for which torch's implementation reads memory. Raises if one
// fails. `compressed` has the row pointers and `plain` the column indices, or the reverse if `is_row_major` is false.
// `compressed_size` and `plain_size` are the sizes of these two dims, and `nnz` is the number of elements of each
// matrix.
void validate(bool is_row_major, const Tensor& compressed, const Tensor& plain, int64_t compressed_size,
              int64_t plain_size, int64_t nnz);

}  // namespace torch_remote::frontend::sparse
