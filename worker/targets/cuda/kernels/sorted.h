#pragma once

#include "worker/targets/cuda/kernels/device.h"

namespace torch_remote::worker::cuda {

// The position of the first sorted key that is not less than `key`; `end` if there is none.
__device__ inline i64 first_key(const u64* keys, i64 end, u64 key) {
  i64 low = 0, high = end;
  while (low < high) {
    const i64 middle = (low + high) / 2;
    if (keys[middle] < key) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

}  // namespace torch_remote::worker::cuda
