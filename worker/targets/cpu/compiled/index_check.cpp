#include "worker/targets/cpu/compiled/index_check.h"

#include <cstdint>

namespace torch_remote::worker::kernels {
namespace {

using codegen::IndexCheck;
using codegen::cpu::IndexRecord;

template <typename Index>
bool is_inside(const IndexCheck& check, Index index) {
  const auto place = static_cast<int64_t>(index);
  const int64_t least = check.wraps ? -check.bound : 0;
  return ((place >= least) & (place < check.bound)) || (check.ignored.has_value() && place == *check.ignored);
}

template <typename Index>
bool are_inside(const IndexCheck& check, const Index* data, size_t dim, IndexRecord* failure) {
  if (dim == check.sizes.size()) {
    if (is_inside(check, *data)) return true;
    *failure = {0, static_cast<int64_t>(*data), check.bound};
    return false;
  }
  const int64_t stride = check.strides[dim], size = stride == 0 ? 1 : check.sizes[dim];
  if (dim + 1 == check.sizes.size()) {
    bool inside = true;
    for (int64_t i = 0; i < size; ++i) inside &= is_inside(check, data[i * stride]);
    if (inside) return true;
  }
  for (int64_t i = 0; i < size; ++i) {
    if (!are_inside(check, data + i * stride, dim + 1, failure)) return false;
  }
  return true;
}

}  // namespace

bool are_inside(const IndexCheck& check, std::span<const tr_buffer> buffers, IndexRecord* failure) {
  const void* const data = buffers[check.buffer].data;
  if (check.dtype == ir::DType::kInt32) {
    return are_inside(check, static_cast<const int32_t*>(data) + check.offset, 0, failure);
  }
  return are_inside(check, static_cast<const int64_t*>(data) + check.offset, 0, failure);
}

}  // namespace torch_remote::worker::kernels
