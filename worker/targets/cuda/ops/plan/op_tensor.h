#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "ir/dtype.h"
#include "worker/targets/cuda/launch/location.h"

namespace torch_remote::worker::cuda {

// A view with the values of one run. Strides are in elements.
struct OpTensor {
  Location location;
  ir::DType dtype = ir::DType::kFloat32;
  std::vector<int64_t> sizes, strides;

  int64_t count() const;  // number of elements
  // Whether the elements are contiguous, in row-major order. True if there are none.
  bool is_packed() const;
  // Bytes of the elements alone, without gaps.
  uint64_t nbytes() const { return static_cast<uint64_t>(count()) * ir::item_size(dtype); }
};

// The products of the sizes before, at and after a dim. A negative dim counts from the end. Without sizes, all are 1.
struct OuterLengthInner {
  int64_t outer = 1, length = 1, inner = 1;
};
OuterLengthInner split(std::span<const int64_t> sizes, int64_t dim);

// The strides of contiguous elements in row-major order.
std::vector<int64_t> packed_strides(std::span<const int64_t> sizes);

// The index of a dim. A negative dim counts from the end.
size_t wrap_dim(int64_t dim, size_t rank);
// A view of the `size` elements `begin`, `begin + step`, ... of a dim.
OpTensor slice(const OpTensor& whole, size_t dim, int64_t begin, int64_t size, int64_t step = 1);

// A number as the bits of f64, f32, f16 or bf16.
uint64_t float_bits(double x, ir::DType dtype);

// The dtype of a complex number's parts. Other dtypes are returned as they are.
ir::DType part_of(ir::DType dtype);
// A view of the real and imaginary parts of a complex tensor, with a new last dim of size 2.
OpTensor parts_of(const OpTensor& tensor);

}  // namespace torch_remote::worker::cuda
