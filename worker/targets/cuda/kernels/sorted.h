#pragma once

#include "worker/targets/cuda/kernels/device.h"

namespace torch_remote::worker::cuda {

// The first position in [low, high) at which `is_before` is false; `high` if there is none.
template <typename F>
__device__ inline i64 partition_point(i64 low, i64 high, F&& is_before) {
  while (low < high) {
    const i64 middle = (low + high) / 2;
    if (is_before(middle)) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

// The position of the first sorted key that is not less than `key`; `end` if there is none.
__device__ inline i64 first_key(const u64* keys, i64 end, u64 key) {
  return partition_point(0, end, [&](i64 at) { return keys[at] < key; });
}

}  // namespace torch_remote::worker::cuda
