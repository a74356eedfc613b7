#include "worker/targets/cuda/ops/plan/op_tensor.h"

#include <bit>
#include <limits>

namespace torch_remote::worker::cuda {

using ir::DType;

int64_t count_of(std::span<const int64_t> sizes) {
  int64_t points = 1;
  bool overflows = false;
  for (const int64_t size : sizes) {
    if (size == 0) return 0;
    overflows |= __builtin_mul_overflow(points, size, &points);
  }
  return overflows ? std::numeric_limits<int64_t>::max() : points;
}

bool is_of(const std::optional<OpTensor>& tensor, DType dtype, int64_t count) {
  return !tensor || (tensor->dtype == dtype && tensor->count() == count);
}

bool has_count(const std::optional<OpTensor>& tensor, int64_t count) { return !tensor || tensor->count() == count; }

bool OpTensor::is_packed() const {
  int64_t step = 1;
  for (size_t d = sizes.size(); d-- > 0;) {
    if (sizes[d] != 1 && strides[d] != step) return count() == 0;
    step *= sizes[d];
  }
  return true;
}

bool OpTensor::has_strides(std::span<const int64_t> wanted) const {
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] != 1 && strides[d] != wanted[d]) return false;
  }
  return true;
}

OuterLengthInner split(std::span<const int64_t> sizes, int64_t dim) {
  OuterLengthInner made;
  if (sizes.empty()) return made;
  if (dim < 0) dim += static_cast<int64_t>(sizes.size());
  for (size_t d = 0; d < sizes.size(); ++d) {
    int64_t& part = d < static_cast<size_t>(dim) ? made.outer : d > static_cast<size_t>(dim) ? made.inner : made.length;
    part *= sizes[d];
  }
  return made;
}

std::vector<int64_t> packed_strides(std::span<const int64_t> sizes) {
  std::vector<int64_t> strides(sizes.size());
  int64_t step = 1;
  for (size_t d = sizes.size(); d-- > 0; step *= sizes[d]) strides[d] = step;
  return strides;
}

OpTensor slice(const OpTensor& whole, size_t dim, int64_t begin, int64_t size, int64_t step) {
  OpTensor made = whole;
  int64_t last = 0;  // From `begin` on.
  const bool overflows = size > 0 && __builtin_mul_overflow(size - 1, step, &last);
  if (overflows || size < 0 || (size > 0 && (begin < 0 || last < 0 || begin >= whole.sizes[dim] - last))) {
    made.sizes[dim] = -1;
    return made;
  }
  made.location.offset += static_cast<uint64_t>(begin * whole.strides[dim]) * ir::item_size(whole.dtype);
  made.sizes[dim] = size;
  made.strides[dim] *= step;
  return made;
}

uint64_t float_bits(double x, DType dtype) {
  if (dtype == DType::kFloat64) return std::bit_cast<uint64_t>(x);
  if (dtype == DType::kFloat16) return std::bit_cast<uint16_t>(static_cast<_Float16>(static_cast<float>(x)));
  const auto wide = std::bit_cast<uint32_t>(static_cast<float>(x));
  if (dtype == DType::kFloat32) return wide;
  if ((wide & 0x7FFFFFFF) > 0x7F800000) return 0x7FC0;
  return (wide + 0x7FFF + (wide >> 16 & 1)) >> 16;  // bfloat16.
}

DType part_of(DType dtype) {
  switch (dtype) {
    case DType::kComplex32:
      return DType::kFloat16;
    case DType::kComplex64:
      return DType::kFloat32;
    case DType::kComplex128:
      return DType::kFloat64;
    default:
      return dtype;
  }
}

OpTensor parts_of(const OpTensor& tensor) {
  OpTensor parts = tensor;
  parts.dtype = part_of(tensor.dtype);
  for (int64_t& stride : parts.strides) stride *= 2;
  parts.sizes.push_back(2);
  parts.strides.push_back(1);
  return parts;
}

}  // namespace torch_remote::worker::cuda
