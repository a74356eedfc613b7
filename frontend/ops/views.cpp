#include <ATen/ExpandUtils.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/alias_native.h>
#include <ATen/ops/transpose_native.h>
#include <ATen/ops/unsqueeze_native.h>
#include <torch/library.h>

#include "frontend/device/tensor.h"

// Views that torch would otherwise compose of as_strided. They are made directly, because they are frequent.
//
// torch.compile calls some of them with fake tensors, whose sizes are symbols. These calls use torch's implementation.
namespace torch_remote::frontend {
namespace {

using at::Tensor;
using c10::IntArrayRef;

bool symbolic(const Tensor& self) { return self.unsafeGetTensorImpl()->has_symbolic_sizes_strides(); }

// The same view again. It copies the slot, so that the trace finds the view.
Tensor alias_view(const Tensor& self) {
  if (symbolic(self)) return at::native::alias(self);
  Tensor result = make_view(self, self.sizes(), self.strides(), self.storage_offset());
  const auto* impl = self.unsafeGetTensorImpl();
  if (typeid(*impl) == typeid(RemoteTensorImpl)) {
    static_cast<RemoteTensorImpl*>(result.unsafeGetTensorImpl())->view =
        static_cast<const RemoteTensorImpl*>(impl)->view;
  }
  return result;
}

Tensor slice_view(const Tensor& self, int64_t dim, std::optional<int64_t> start, std::optional<int64_t> end,
                  int64_t step) {
  TORCH_CHECK_INDEX(self.dim() > 0, "slice() cannot be applied to a 0-dim tensor.");
  dim = at::maybe_wrap_dim(dim, self.dim());
  TORCH_CHECK(step > 0, "slice step must be positive");
  c10::DimVector sizes(self.sizes().begin(), self.sizes().end());
  c10::DimVector strides(self.strides().begin(), self.strides().end());
  const int64_t size = sizes[dim];
  const auto clamp = [size](int64_t position) {
    return std::clamp<int64_t>(position < 0 ? position + size : position, 0, size);
  };
  const int64_t first = clamp(start.value_or(0));
  const int64_t last = std::max(first, clamp(end.value_or(size)));
  const int64_t offset = self.storage_offset() + first * strides[dim];
  sizes[dim] = (last - first + step - 1) / step;
  strides[dim] *= step;
  return make_view(self, sizes, strides, offset);
}

Tensor select_view(const Tensor& self, int64_t dim, int64_t index) {
  TORCH_CHECK_INDEX(self.dim() > 0, "select() cannot be applied to a 0-dim tensor.");
  dim = at::maybe_wrap_dim(dim, self.dim());
  const int64_t size = self.size(dim);
  TORCH_CHECK_INDEX(index >= -size && index < size, "select(): index ", index, " out of range for tensor of size ",
                    self.sizes(), " at dimension ", dim);
  if (index < 0) index += size;
  c10::DimVector sizes(self.sizes().begin(), self.sizes().end());
  c10::DimVector strides(self.strides().begin(), self.strides().end());
  const int64_t offset = self.storage_offset() + index * strides[dim];
  sizes.erase(sizes.begin() + dim);
  strides.erase(strides.begin() + dim);
  return make_view(self, sizes, strides, offset);
}

Tensor transpose_view(const Tensor& self, int64_t dim0, int64_t dim1) {
  if (symbolic(self)) return at::native::transpose(self, dim0, dim1);
  dim0 = at::maybe_wrap_dim(dim0, self.dim());
  dim1 = at::maybe_wrap_dim(dim1, self.dim());
  if (dim0 == dim1) return alias_view(self);
  c10::DimVector sizes(self.sizes().begin(), self.sizes().end());
  c10::DimVector strides(self.strides().begin(), self.strides().end());
  std::swap(sizes[dim0], sizes[dim1]);
  std::swap(strides[dim0], strides[dim1]);
  return make_view(self, sizes, strides, self.storage_offset());
}

Tensor t_view(const Tensor& self) {
  TORCH_CHECK(self.dim() <= 2, "t() expects a tensor with <= 2 dimensions, but self is ", self.dim(), "D");
  return self.dim() < 2 ? alias_view(self) : transpose_view(self, 0, 1);
}

Tensor permute_view(const Tensor& self, IntArrayRef dims) {
  const int64_t rank = self.dim();
  TORCH_CHECK(rank == static_cast<int64_t>(dims.size()),
              "permute(sparse_coo): number of dimensions in the tensor input does not match the length of the desired "
              "ordering of dimensions i.e. input.dim() = ",
              rank, " is not equal to len(dims) = ", dims.size());
  c10::DimVector sizes(rank), strides(rank);
  uint64_t seen = 0;
  for (int64_t i = 0; i < rank; ++i) {
    const int64_t dim = at::maybe_wrap_dim(dims[i], rank);
    TORCH_CHECK(!(seen >> dim & 1), "permute(): duplicate dims are not allowed.");
    seen |= uint64_t{1} << dim;
    sizes[i] = self.size(dim);
    strides[i] = self.stride(dim);
  }
  return make_view(self, sizes, strides, self.storage_offset());
}

Tensor expand_view(const Tensor& self, IntArrayRef size, bool) {
  TORCH_CHECK(size.size() >= static_cast<size_t>(self.dim()), "expand(", self.toString(), "{", self.sizes(),
              "}, size=", size, "): the number of sizes provided (", size.size(), ") ",
              "must be greater or equal to the number of dimensions in the tensor (", self.dim(), ")");
  const auto geometry = at::inferExpandGeometry_dimvector(self.sizes(), self.strides(), size);
  return make_view(self, geometry.sizes, geometry.strides, self.storage_offset());
}

Tensor unsqueeze_view(const Tensor& self, int64_t dim) {
  if (symbolic(self)) return at::native::unsqueeze(self, dim);
  dim = at::maybe_wrap_dim(dim, self.dim() + 1);
  c10::DimVector sizes(self.sizes().begin(), self.sizes().end());
  c10::DimVector strides(self.strides().begin(), self.strides().end());
  const int64_t stride = dim < self.dim() ? sizes[dim] * strides[dim] : 1;
  sizes.insert(sizes.begin() + dim, 1);
  strides.insert(strides.begin() + dim, stride);
  return make_view(self, sizes, strides, self.storage_offset());
}

Tensor squeeze_view(const Tensor& self, int64_t dim) {
  dim = at::maybe_wrap_dim(dim, self.dim());
  if (self.dim() == 0 || self.size(dim) != 1) return alias_view(self);
  c10::DimVector sizes(self.sizes().begin(), self.sizes().end());
  c10::DimVector strides(self.strides().begin(), self.strides().end());
  sizes.erase(sizes.begin() + dim);
  strides.erase(strides.begin() + dim);
  return make_view(self, sizes, strides, self.storage_offset());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("alias", &alias_view);
  library.impl("detach", &alias_view);
  library.impl("slice.Tensor", &slice_view);
  library.impl("select.int", &select_view);
  library.impl("transpose.int", &transpose_view);
  library.impl("t", &t_view);
  library.impl("permute", &permute_view);
  library.impl("expand", &expand_view);
  library.impl("unsqueeze", &unsqueeze_view);
  library.impl("squeeze.dim", &squeeze_view);
}

}  // namespace
}  // namespace torch_remote::frontend
