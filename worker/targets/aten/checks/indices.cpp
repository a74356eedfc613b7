#include "worker/targets/aten/checks/indices.h"

namespace torch_remote::worker::aten {
namespace {

template <class T>
bool all_below(const at::Tensor& packed, int64_t size) {
  const T* values = packed.const_data_ptr<T>();
  bool good = size >= 0 || packed.numel() == 0;
  // As unsigned numbers, negative indices are very large.
  for (int64_t i = 0; i < packed.numel(); ++i) {
    good &= static_cast<uint64_t>(static_cast<int64_t>(values[i])) < static_cast<uint64_t>(size);
  }
  return good;
}

}  // namespace

bool all_in_range(const at::Tensor& index, int64_t size) {
  const at::Tensor packed = index.contiguous();
  if (packed.scalar_type() == at::kLong) return all_below<int64_t>(packed, size);
  if (packed.scalar_type() == at::kInt) return all_below<int32_t>(packed, size);
  return all_below<int64_t>(packed.to(at::kLong), size);
}

}  // namespace torch_remote::worker::aten
