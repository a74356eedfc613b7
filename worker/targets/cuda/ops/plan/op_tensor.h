#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "ir/dtype.h"
#include "worker/targets/cuda/launch/location.h"

namespace torch_remote::worker::cuda {

// A view with the values of one run.
struct OpTensor {
  Location location;
  ir::DType dtype = ir::DType::kFloat32;
  std::vector<int64_t> sizes, strides;

  int64_t count() const;  // number of elements
  // Whether the elements are contiguous, in row-major order.
  bool is_packed() const;
  uint64_t nbytes() const { return static_cast<uint64_t>(count()) * ir::item_size(dtype); }
};

// The numbers of elements before, along and after a dim.
struct OuterLengthInner {
  int64_t outer = 1, length = 1, inner = 1;
};
OuterLengthInner split(std::span<const int64_t> sizes, int64_t dim);

// The strides of contiguous elements in row-major order.
std::vector<int64_t> packed_strides(std::span<const int64_t> sizes);

// The index of a dim. A negative dim counts from the end.
size_t wrap_dim(int64_t dim, size_t rank);
// The elements `begin`, `begin + step`, ... of a dim.
OpTensor slice(const OpTensor& whole, size_t dim, int64_t begin, int64_t size, int64_t step = 1);

// A number as the bits of a float dtype.
uint64_t float_bits(double x, ir::DType dtype);

// The dtype of a complex number's parts; and a view of the parts, with a last dim of two.
ir::DType part_of(ir::DType dtype);
OpTensor parts_of(const OpTensor& tensor);

}  // namespace torch_remote::worker::cuda
