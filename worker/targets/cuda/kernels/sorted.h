#pragma once

#include "worker/targets/cuda/kernels/device.h"

namespace torch_remote::worker::cuda {

// The first of sorted keys that is not less; `end` if there is none.
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
