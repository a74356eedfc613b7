#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/string_view.h>

#include <array>
#include <optional>
#include <tuple>
#include <utility>

// Sparse tensors: torch's own classes, whose indices and values are tensors of this device. Most of torch's kernels for
// them only call ops on these; they are named in sparse.cpp and run as they are. Those that go through memory are
// written anew from such ops. All else is refused by name (layouts.cpp).
//
// Indices are of int64, [sparse dims, elements]; values are [elements, dense dims...]. What depends on how many
// elements there will be waits for the worker: coalescing, joins, products of two sparse tensors.
namespace torch_remote::frontend::sparse {

using at::IntArrayRef;
using at::Scalar;
using at::Tensor;

Tensor make_coo(const Tensor& like, const Tensor& indices, const Tensor& values, bool coalesced);
// The elements' places in the sparse dims, in row-major order.
Tensor places(const Tensor& indices, IntArrayRef sizes);
// rows[index[i]] += values[i], `count` of them. Of bool it is `or`, as addition is there.
Tensor sums_of(const Tensor& values, const Tensor& index, int64_t count);
Tensor coalesce(const Tensor& self);
// A sparse tensor becomes another one: its indices and values are exchanged.
Tensor& become(Tensor& self, const Tensor& other);
Tensor sum_of(const Tensor& self, const Tensor& other, const Scalar& alpha);
Tensor& add_to(Tensor& self, const Tensor& other, const Scalar& alpha);
Tensor& sum_out(const Tensor& self, const Tensor& other, const Scalar& alpha, Tensor& out);
Tensor difference(const Tensor& self, const Tensor& other, const Scalar& alpha);
Tensor& subtract(Tensor& self, const Tensor& other, const Scalar& alpha);
Tensor& difference_out(const Tensor& self, const Tensor& other, const Scalar& alpha, Tensor& out);
Tensor multiplied(const Tensor& self, const Tensor& other);
Tensor& multiply(Tensor& self, const Tensor& other);
Tensor& multiplied_out(const Tensor& self, const Tensor& other, Tensor& out);
Tensor like_first_dim(const Tensor& condition, const Tensor& values);
Tensor mask(const Tensor& self, const Tensor& mask);
Tensor project(const Tensor& self, const Tensor& onto, bool);
// For each of `wanted` all places in `keys` (of any order) that hold it, in order: pairs (which one, the place).
std::pair<Tensor, Tensor> join(const Tensor& wanted, const Tensor& keys);
Tensor select_index(const Tensor& self, int64_t dim, const Tensor& index);
// The gradient of a sum over `dims`: that of the element which each element went into.
Tensor sum_backward(const Tensor& grad, const Tensor& self, IntArrayRef dims);
template <bool log>
Tensor softmax(const Tensor& given, int64_t dim, bool);
template <bool log>
Tensor softmax_backward(const Tensor& grad, const Tensor& output, int64_t dim, const Tensor&);
// The elements (or blocks) of a matrix or a batch of matrices, of COO or compressed. Rows and columns of elements, or
// of blocks, are numbered through all matrices of the batch.
struct Places {
  Tensor rows, columns;
  Tensor values;                          // [places, block..., dense dims...]; a block of an element is [1, 1]
  std::array<int64_t, 2> block = {1, 1};  // rows and columns
  int64_t batches = 1;
};
Places places_of(const Tensor& matrix);
// A compressed tensor with other values at the same places.
Tensor with_values(const Tensor& self, const Tensor& values);
// beta * self + alpha * (one sparse @ the other one): of matrices, of batches of these.
Tensor product(const Tensor& self, const Tensor& mat1, const Tensor& mat2, const Scalar& beta, const Scalar& alpha);
Tensor& product_out(const Tensor& self, const Tensor& mat1, const Tensor& mat2, const Scalar& beta, const Scalar& alpha,
                    Tensor& out);
Tensor& product_in_place(Tensor& self, const Tensor& mat1, const Tensor& mat2, const Scalar& beta, const Scalar& alpha);
Tensor batch_sum(const Tensor& self, const Tensor& batch1, const Tensor& batch2, const Scalar& beta,
                 const Scalar& alpha);
Tensor batch_product(const Tensor& self, const Tensor& other);
// Of a matrix and a vector.
Tensor matrix_vector(const Tensor& self, const Tensor& vector);
Tensor& vector_product_out(const Tensor& self, const Tensor& matrix, const Tensor& vector, const Scalar& beta,
                           const Scalar& alpha, Tensor& out);
Tensor sparse_product(const Tensor& self, const Tensor& other);
// A sparse matrix times a strided one: of the rows that have elements, whole rows.
Tensor rows_of_product(const Tensor& mat1, const Tensor& mat2);
// beta * self + alpha * that, all of it sparse.
Tensor& sparse_sum_with_product_out(const Tensor& self, const Tensor& mat1, const Tensor& mat2, const Scalar& beta,
                                    const Scalar& alpha, Tensor& out);
// beta * self + alpha * (mat1 @ mat2), where `self` has elements.
Tensor sampled_product(const Tensor& self, const Tensor& mat1, const Tensor& mat2, const Scalar& beta,
                       const Scalar& alpha);
// A product whose terms are not added up but reduced in another way; and of maxima and minima, where somebody may want
// gradients, which element each came from (as many as there are: none).
std::tuple<Tensor, Tensor> reduced_product(const Tensor& self, const Tensor& other, c10::string_view reduce);
std::tuple<Tensor, Tensor> reduced_product_backward(const Tensor& self, const Tensor& grad, const Tensor& other,
                                                    c10::string_view reduce, const Tensor& from,
                                                    std::array<bool, 2> wanted);
Tensor compressed_to_dense(const Tensor& self, std::optional<at::ScalarType> type, std::optional<bool> masked_grad);
template <at::Layout layout>
Tensor to_compressed(const Tensor& self, std::optional<int64_t> dense_dim);
template <at::Layout layout>
Tensor to_blocks(const Tensor& self, IntArrayRef block, std::optional<int64_t> dense_dim);
Tensor compressed_multiplied(const Tensor& self, const Tensor& other);
Tensor compressed_multiplied_by_number(const Tensor& self, const Scalar& other);
Tensor compressed_sum(const Tensor& self, const Tensor& other, const Scalar& alpha);
Tensor compressed_product(const Tensor& self, const Tensor& other);
// How many of the rows of sorted elements lie before each row, and all.
Tensor to_csr(const Tensor& rows, int64_t size, bool int32);
Tensor to_coo(const Tensor& crow, const Tensor& columns, bool int32, bool transpose);
// What torch's own looks at in memory.
void validate(bool is_row_major, const Tensor& compressed, const Tensor& plain, int64_t compressed_size,
              int64_t plain_size, int64_t nnz);

}  // namespace torch_remote::frontend::sparse
