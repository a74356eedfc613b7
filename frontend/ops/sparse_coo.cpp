#include <ATen/ExpandUtils.h>
#include <ATen/SparseTensorImpl.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_sparse_coo_tensor_with_dims_and_tensors.h>
#include <ATen/ops/_unique2.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/can_cast.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/index.h>
#include <ATen/ops/repeat_interleave.h>
#include <ATen/ops/result_type.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <vector>

#include "frontend/ops/sparse.h"

namespace torch_remote::frontend::sparse {

Tensor make_coo(const Tensor& like, const Tensor& indices, const Tensor& values, bool coalesced) {
  return at::_sparse_coo_tensor_with_dims_and_tensors(like.sparse_dim(), values.dim() - 1, like.sizes(), indices,
                                                      values, values.options().layout(at::kSparse), coalesced);
}

Tensor linear_positions(const Tensor& indices, IntArrayRef sizes) {
  if (indices.size(0) == 0) return at::zeros({indices.size(1)}, indices.options());
  Tensor place = indices.select(0, 0);
  for (int64_t d = 1; d < indices.size(0); ++d) place = place.mul(sizes[d]).add(indices.select(0, d));
  return place;
}

static Tensor indices_of(const Tensor& places, int64_t sparse_dim, IntArrayRef sizes) {
  if (sparse_dim == 0) return at::empty({0, places.size(0)}, places.options());
  std::vector<Tensor> all(sparse_dim);
  Tensor rest = places;
  for (int64_t d = sparse_dim - 1; d > 0; --d) {
    all[d] = rest.remainder(sizes[d]);
    rest = rest.div(sizes[d], "floor");
  }
  all[0] = rest;
  return at::stack(all);
}

Tensor sum_rows_by_index(const Tensor& values, const Tensor& index, int64_t count) {
  std::vector<int64_t> sizes = values.sizes().vec();
  sizes[0] = count;
  if (values.scalar_type() == at::kBool) {
    return at::zeros(sizes, values.options().dtype(at::kLong)).index_add_(0, index, values.to(at::kLong)).ne(0);
  }
  return at::zeros(sizes, values.options()).index_add_(0, index, values);
}

Tensor coalesce(const Tensor& self) {
  if (self.is_coalesced()) return self;
  if (self._nnz() < 2) return self.clone()._coalesced_(true);
  const auto [found, inverse, counts] = at::_unique2(linear_positions(self._indices(), self.sizes()), true, true);
  return make_coo(self, indices_of(found, self.sparse_dim(), self.sizes()),
                  sum_rows_by_index(self._values(), inverse, found.size(0)), true);
}

static c10::List<std::optional<Tensor>> each_of(const Tensor& indices) {
  c10::List<std::optional<Tensor>> all;
  for (const Tensor& one : indices.unbind(0)) all.push_back(one);
  return all;
}

// The elements of a strided tensor at these indices, in the shape of a sparse tensor's values.
static Tensor values_at(const Tensor& dense, const Tensor& indices) {
  if (indices.size(0) != 0) return at::index(dense, each_of(indices));
  std::vector<int64_t> sizes = dense.sizes().vec();
  sizes.insert(sizes.begin(), indices.size(1));
  return dense.unsqueeze(0).expand(sizes);
}

static Tensor& add_to_dense(Tensor& dense, const Tensor& sparse, const Scalar& alpha) {
  TORCH_CHECK(dense.sizes() == sparse.sizes(), "add: expected 'self' and 'other' to have same size, but self has size ",
              dense.sizes(), " while other has size ", sparse.sizes(),
              " (FYI: dense-sparse addition does not currently support broadcasting)");
  const auto type = at::result_type(dense, sparse);
  TORCH_CHECK(at::can_cast(type, dense.scalar_type()), "Can't convert result type ", type, " to output ",
              dense.scalar_type(), " in add operation");
  if (sparse._nnz() == 0) return dense;
  Tensor values = sparse._values().to(dense.scalar_type());
  if (!alpha.equal(1)) values = values.mul(alpha);
  if (sparse.sparse_dim() == 0) return dense.add_(values.sum(0));
  return dense.index_put_(each_of(sparse._indices()), values, /*accumulate=*/true);
}

static void check_addends(const Tensor& self, const Tensor& other) {
  TORCH_CHECK(self.is_sparse() && other.is_sparse(),
              "add(sparse, dense) is not supported. Use add(dense, sparse) instead.");
  TORCH_CHECK(self.sizes() == other.sizes(), "add: expected sizes of 'self' and 'other' to match, but ", self.sizes(),
              " != ", other.sizes());
  TORCH_CHECK(self.sparse_dim() == other.sparse_dim() && self.dense_dim() == other.dense_dim(),
              "add: expected 'self' and 'other' to have same density, but 'self' has ", self.sparse_dim(),
              " sparse dimensions while 'other' has ", other.sparse_dim(), " sparse dimensions");
}

static Tensor add_sparse(const Tensor& self, const Tensor& other, const Scalar& alpha) {
  check_addends(self, other);
  const auto type = at::result_type(self, other);
  const Tensor left = self._values().to(type), right = other._values().to(type);
  const Tensor sum = make_coo(self, at::cat({self._indices(), other._indices()}, 1),
                              at::cat({left, alpha.equal(1) ? right : right.mul(alpha)}, 0), false);
  return self.is_coalesced() && other.is_coalesced() ? coalesce(sum) : sum;
}

Tensor added(const Tensor& self, const Tensor& other, const Scalar& alpha) {
  if (self.is_sparse()) return add_sparse(self, other, alpha);
  Tensor sum = self.to(at::result_type(self, other), false, /*copy=*/true);
  return add_to_dense(sum, other, alpha);
}

Tensor& assign_contents(Tensor& self, const Tensor& other) {
  TORCH_CHECK(at::can_cast(other.scalar_type(), self.scalar_type()), "Can't convert result type ", other.scalar_type(),
              " to output ", self.scalar_type());
  auto* impl = static_cast<at::SparseTensorImpl*>(self.unsafeGetTensorImpl());
  impl->resize_(other.sparse_dim(), other.dense_dim(), other.sizes());
  impl->set_indices_and_values_unsafe(other._indices(), other._values().to(self.scalar_type()));
  impl->set_coalesced(other.is_coalesced());
  return self;
}

static Tensor& add_to(Tensor& self, const Tensor& other, const Scalar& alpha) {
  if (!self.is_sparse()) return add_to_dense(self, other, alpha);
  return assign_contents(self, add_sparse(self, other, alpha));
}

static Tensor& sum_out(const Tensor& self, const Tensor& other, const Scalar& alpha, Tensor& out) {
  const Tensor sum = added(self, other, alpha);
  if (out.is_sparse()) return assign_contents(out, sum);
  TORCH_CHECK(at::can_cast(sum.scalar_type(), out.scalar_type()), "Can't convert result type ", sum.scalar_type(),
              " to output ", out.scalar_type(), " in add operation");
  return out.resize_(sum.sizes()).copy_(sum);
}

static Tensor difference(const Tensor& self, const Tensor& other, const Scalar& alpha) {
  return added(self, other, -alpha);
}
static Tensor& subtract(Tensor& self, const Tensor& other, const Scalar& alpha) { return add_to(self, other, -alpha); }
static Tensor& difference_out(const Tensor& self, const Tensor& other, const Scalar& alpha, Tensor& out) {
  return sum_out(self, other, -alpha, out);
}

// Positions of the wanted numbers in the sorted ones; valid where `found` is true.
struct Search {
  Tensor at, found;
};

static Search search(const Tensor& sorted, const Tensor& wanted) {
  const Tensor at = at::searchsorted(sorted, wanted).clamp_max(sorted.size(0) - 1);
  return {at, sorted.index_select(0, at).eq(wanted)};
}

// The element-wise product, at the indices that both tensors have.
static Tensor intersection(const Tensor& self, const Tensor& other) {
  TORCH_CHECK(self.sizes() == other.sizes(), "mul operands have incompatible sizes ", self.sizes(), " and ",
              other.sizes());
  TORCH_CHECK(self.sparse_dim() == other.sparse_dim(), "mul operands have incompatible sparse dims ", self.sparse_dim(),
              " and ", other.sparse_dim());
  const Tensor left = coalesce(self), right = coalesce(other);
  const auto type = at::result_type(self, other);
  if (left._nnz() == 0 || right._nnz() == 0) {
    std::vector<int64_t> none = left._values().sizes().vec();
    none[0] = 0;
    return make_coo(self, at::empty({left.sparse_dim(), 0}, left._indices().options()),
                    at::empty(none, left._values().options().dtype(type)), true);
  }
  const Search there =
      search(linear_positions(right._indices(), right.sizes()), linear_positions(left._indices(), left.sizes()));
  const Tensor both = there.found.nonzero().squeeze(1), at = there.at;
  const Tensor values = left._values().index_select(0, both).to(type).mul(
      right._values().index_select(0, at.index_select(0, both)).to(type));
  return make_coo(self, left._indices().index_select(1, both), values, self.is_coalesced() && other.is_coalesced());
}

Tensor multiplied(const Tensor& self, const Tensor& other) {
  if (self.is_sparse() && other.is_sparse() && self.dim() != 0 && other.dim() != 0) return intersection(self, other);
  const Tensor &sparse = self.is_sparse() ? self : other, &factor = self.is_sparse() ? other : self;
  TORCH_CHECK(!factor.is_sparse(), "remote: mul with a 0-dim sparse tensor is not supported; call to_dense() on it");
  const auto type = at::result_type(self, other);
  if (factor.dim() == 0) {
    return make_coo(sparse, sparse._indices().clone(), sparse._values().mul(factor).to(type), sparse.is_coalesced());
  }
  TORCH_CHECK(at::infer_size(sparse.sizes(), factor.sizes()) == sparse.sizes(),
              "mul(sparse, dense): the sparse operand would have to be broadcast from ", sparse.sizes(), " to ",
              at::infer_size(sparse.sizes(), factor.sizes()));
  const Tensor factors = values_at(factor.expand(sparse.sizes()), sparse._indices());
  return make_coo(sparse, sparse._indices().clone(), sparse._values().mul(factors).to(type), sparse.is_coalesced());
}

static Tensor& multiply(Tensor& self, const Tensor& other) {
  const Tensor product = multiplied(self, other);
  return self.is_sparse() ? assign_contents(self, product) : self.copy_(product.to_dense());
}

static Tensor& multiplied_out(const Tensor& self, const Tensor& other, Tensor& out) {
  TORCH_CHECK(out.is_sparse(), "mul(): the result of a sparse operand is sparse, and 'out' is not");
  return assign_contents(out, multiplied(self, other));
}

Tensor along_first_dim(const Tensor& condition, const Tensor& values) {
  std::vector<int64_t> sizes(values.dim(), 1);
  sizes[0] = condition.size(0);
  return condition.view(sizes);
}

// The elements of a sparse tensor at these indices of its sparse dims; 0 where it has none.
static Tensor values_of(const Tensor& sparse, const Tensor& indices) {
  const Tensor all = coalesce(sparse);
  if (all._nnz() == 0) {
    std::vector<int64_t> sizes = all._values().sizes().vec();
    sizes[0] = indices.size(1);
    return at::zeros(sizes, all._values().options());
  }
  const Search there = search(linear_positions(all._indices(), all.sizes()), linear_positions(indices, all.sizes()));
  const Tensor values = all._values().index_select(0, there.at);
  return at::where(along_first_dim(there.found, values), values, at::zeros({}, values.options()));
}

Tensor mask(const Tensor& self, const Tensor& mask) {
  TORCH_CHECK(self.sizes() == mask.sizes(), "sparse_mask(): operands have incompatible sizes; self has size ",
              self.sizes(), " but mask has size ", mask.sizes());
  const Tensor indices = mask._indices();
  const Tensor values = self.is_sparse() ? values_of(self, indices) : values_at(self, indices);
  return make_coo(mask, indices.clone(), values.clone(at::MemoryFormat::Contiguous), mask.is_coalesced());
}

// _sparse_mask_projection: the same as mask(), for both values of `accumulate_matches`.
static Tensor project(const Tensor& self, const Tensor& onto, bool) { return mask(self, onto); }

std::pair<Tensor, Tensor> join(const Tensor& wanted, const Tensor& keys) {
  const auto [sorted, order] = at::sort(keys, /*stable=*/true, 0, false);
  const Tensor begin = at::searchsorted(sorted, wanted), end = at::searchsorted(sorted, wanted, false, /*right=*/true);
  const Tensor counts = end.sub(begin);
  const Tensor which = at::repeat_interleave(counts);
  const Tensor first = begin.sub(counts.cumsum(0)).add(counts);
  const Tensor at = first.index_select(0, which).add(at::arange(which.size(0), which.options()));
  return {which, order.index_select(0, at)};
}

// index_select. Raises an IndexError if `index` is out of range along a sparse dim.
static Tensor select_index(const Tensor& self, int64_t dim, const Tensor& index) {
  dim = at::maybe_wrap_dim(dim, self.dim());
  TORCH_CHECK_INDEX(index.dim() == 1, "index_select(): Index is supposed to be a vector");
  std::vector<int64_t> sizes = self.sizes().vec();
  sizes[dim] = index.size(0);
  const auto make = [&](const Tensor& indices, const Tensor& values, bool coalesced) {
    return at::_sparse_coo_tensor_with_dims_and_tensors(self.sparse_dim(), self.dense_dim(), sizes, indices, values,
                                                        values.options().layout(at::kSparse), coalesced);
  };
  if (dim >= self.sparse_dim()) {
    return make(self._indices().clone(), self._values().index_select(dim - self.sparse_dim() + 1, index),
                self.is_coalesced());
  }
  const Tensor wanted = index.to(at::kLong);
  if (wanted.numel() > 0) {
    const Tensor bad = wanted.lt(0).logical_or(wanted.ge(self.size(dim))).any();
    TORCH_CHECK_INDEX(!bad.item<bool>(), "index_select(): index contains ",
                      "values that are out of range for tensor of size ", self.size(dim), " at dimension ", dim);
  }
  const auto [which, at] = join(wanted, self._indices().select(0, dim));
  Tensor indices = self._indices().index_select(1, at);
  indices.select(0, dim).copy_(which);
  return make(indices, self._values().index_select(0, at), dim == 0 && self.is_coalesced());
}

// The gradient of a sum over `dims`: each element gets the gradient of the element that it was added to.
static Tensor sum_backward(const Tensor& grad, const Tensor& self, IntArrayRef dims) {
  std::vector<bool> gone(self.dim());
  for (const int64_t dim : dims) gone[at::maybe_wrap_dim(dim, self.dim())] = true;
  const Tensor indices = self._indices();
  std::vector<Tensor> kept;
  for (int64_t d = 0; d < self.sparse_dim(); ++d) {
    if (!gone[d]) kept.push_back(indices.select(0, d));
  }
  Tensor values;
  if (kept.empty()) {
    values = (grad.is_sparse() ? grad.to_dense() : grad).unsqueeze(0);
  } else {
    const Tensor at = at::stack(kept);
    values = grad.is_sparse() ? values_of(grad, at) : values_at(grad, at);
  }
  for (int64_t d = 0; d < self.dense_dim(); ++d) {
    if (gone[self.sparse_dim() + d]) values = values.unsqueeze(1 + d);
  }
  return make_coo(self, indices.clone(), values.expand(self._values().sizes()).contiguous(), self.is_coalesced());
}

TORCH_LIBRARY_IMPL(aten, SparsePrivateUse1, library) {
  library.impl("_coalesce", &coalesce);
  library.impl("add.Tensor", &added);
  library.impl("add_.Tensor", &add_to);
  library.impl("add.out", &sum_out);
  library.impl("sub.Tensor", &difference);
  library.impl("sub_.Tensor", &subtract);
  library.impl("sub.out", &difference_out);
  library.impl("mul.Tensor", &multiplied);
  library.impl("mul_.Tensor", &multiply);
  library.impl("mul.out", &multiplied_out);
  library.impl("sparse_mask", &mask);
  library.impl("_sparse_mask_projection", &project);
  library.impl("index_select", &select_index);
  library.impl("_sparse_sum_backward", &sum_backward);
}

}  // namespace torch_remote::frontend::sparse
