#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "codegen/loop/scalar_ops.h"
#include "ir/dtype.h"
#include "worker/targets/cuda/launch/location.h"

namespace torch_remote::worker::cuda {

// The product of sizes; INT64_MAX if it has more bits.
int64_t count_of(std::span<const int64_t> sizes);

// Whether the hand-written kernels load and store elements of this dtype (kernels/device.h). They copy elements of any
// dtype.
inline bool is_kernel_dtype(ir::DType dtype) { return codegen::is_memory_type(dtype); }

// A view with the values of one run. Strides are in elements.
struct OpTensor {
  Location location;
  ir::DType dtype = ir::DType::kFloat32;
  std::vector<int64_t> sizes, strides;

  int64_t count() const { return count_of(sizes); }  // number of elements
  // Whether the elements are contiguous, in row-major order. True if there are none.
  bool is_packed() const;
  // Whether the strides are these. Strides of dims of size 1 do not matter.
  bool has_strides(std::span<const int64_t> wanted) const;
  // Bytes of the elements alone, without gaps.
  uint64_t nbytes() const { return static_cast<uint64_t>(count()) * ir::item_size(dtype); }
};

// Whether the tensor is absent, or has this dtype and so many elements.
bool is_of(const std::optional<OpTensor>& tensor, ir::DType dtype, int64_t count);
// The same for any dtype.
bool has_count(const std::optional<OpTensor>& tensor, int64_t count);

// The products of the sizes before, at and after a dim. A negative dim counts from the end. Without sizes, all are 1.
struct OuterLengthInner {
  int64_t outer = 1, length = 1, inner = 1;
};
OuterLengthInner split(std::span<const int64_t> sizes, int64_t dim);

// The strides of contiguous elements in row-major order.
std::vector<int64_t> packed_strides(std::span<const int64_t> sizes);

// A view of the `size` elements `begin`, `begin + step`, ... of a dim. If the dim lacks one of them, the view has size
// -1, and PlanBuilder::copy declines it.
OpTensor slice(const OpTensor& whole, size_t dim, int64_t begin, int64_t size, int64_t step = 1);

// A number as the bits of f64, f32, f16 or bf16.
uint64_t float_bits(double x, ir::DType dtype);

// The dtype of a complex number's parts. Other dtypes are returned as they are.
ir::DType part_of(ir::DType dtype);
// A view of the real and imaginary parts of a complex tensor, with a new last dim of size 2.
OpTensor parts_of(const OpTensor& tensor);

}  // namespace torch_remote::worker::cuda
