#include "frontend/shapes/write_checks.h"

#include <ATen/Dispatch_v2.h>
#include <ATen/ExpandUtils.h>
#include <ATen/core/Tensor.h>

namespace torch_remote::frontend {

using c10::IValue;

void check_fits(c10::ScalarType dtype, const c10::Scalar& number) {
  AT_DISPATCH_V2(dtype, "fill_", AT_WRAP([&] { (void)number.to<scalar_t>(); }), AT_EXPAND(AT_ALL_TYPES_AND_COMPLEX),
                 AT_EXPAND(AT_BAREBONES_UNSIGNED_TYPES), AT_EXPAND(AT_FLOAT8_TYPES), at::kComplexHalf, at::kHalf,
                 at::kBFloat16, at::kBool);
}

void check_indices(const IValue* args) {
  const at::Tensor& self = args[0].toTensor();
  int64_t dim = 0;  // of `self`, to which the next index applies
  const auto check_count = [&](int64_t count) {
    TORCH_CHECK_INDEX(count <= self.dim(), "too many indices for tensor of dimension ", self.dim(), " (got ", count,
                      ")");
  };
  const auto indices = args[1].toListRef();
  check_count(static_cast<int64_t>(indices.size()));
  for (const IValue& item : indices) {
    if (item.isNone() || !item.toTensor().defined()) {
      ++dim;
      continue;
    }
    const at::Tensor& index = item.toTensor();
    const c10::ScalarType dtype = index.scalar_type();
    if (dtype != c10::ScalarType::Bool && dtype != c10::ScalarType::Byte) {
      TORCH_CHECK_INDEX(dtype == c10::ScalarType::Long || dtype == c10::ScalarType::Int,
                        "tensors used as indices must be long, int, byte or bool tensors");
      ++dim;
      continue;
    }
    for (int64_t d = 0; d < index.dim(); ++d, ++dim) {
      TORCH_CHECK_INDEX(index.size(d) == self.size(dim), "The shape of the mask ", index.sizes(), " at index ", d,
                        " does not match the shape of the indexed tensor ", self.sizes(), " at index ", dim);
    }
  }
  check_count(dim);
}

std::optional<c10::DimVector> indexed_sizes(const IValue* args) {
  const at::Tensor& self = args[0].toTensor();
  const auto indices = args[1].toListRef();
  if (static_cast<int64_t>(indices.size()) > self.dim()) return std::nullopt;
  c10::DimVector sizes, picked;
  size_t first = indices.size(), last = 0;
  for (size_t i = 0; i < indices.size(); ++i) {
    if (indices[i].isNone() || !indices[i].toTensor().defined()) continue;
    const at::Tensor& index = indices[i].toTensor();
    if (index.scalar_type() == c10::ScalarType::Bool || index.scalar_type() == c10::ScalarType::Byte) {
      return std::nullopt;
    }
    if (first == indices.size()) {
      picked.assign(index.sizes().begin(), index.sizes().end());
    } else if (!index.sizes().equals(picked)) {
      TORCH_CHECK_INDEX(at::are_expandable(index.sizes(), picked),
                        "shape mismatch: indexing tensors could not be broadcast together with shapes ",
                        c10::IntArrayRef(picked), ", ", index.sizes());
      picked = at::infer_size_dimvector(index.sizes(), picked);
    }
    first = std::min(first, i);
    last = i;
  }
  // Consecutive indexed dims stay in their position; otherwise the dims of the indices come first.
  bool together = true;
  for (size_t i = first; i <= last && i < indices.size(); ++i) {
    together &= !indices[i].isNone() && indices[i].toTensor().defined();
  }
  if (!together) sizes = picked;
  for (size_t i = 0; i < static_cast<size_t>(self.dim()); ++i) {
    if (together && i == first) sizes.append(picked.begin(), picked.end());
    const bool whole = i >= indices.size() || indices[i].isNone() || !indices[i].toTensor().defined();
    if (whole) sizes.push_back(self.size(static_cast<int64_t>(i)));
  }
  return sizes;
}

}  // namespace torch_remote::frontend
