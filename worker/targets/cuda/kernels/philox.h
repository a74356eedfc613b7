#pragma once

#include "worker/targets/cuda/kernels/device.h"

// Philox4x32-10, as in ir/philox.h.
namespace torch_remote::worker::cuda {

struct Words {
  u32 word[4];
};

__device__ inline Words philox(u64 seed, u64 offset, u64 number) {
  auto c0 = static_cast<u32>(number), c1 = static_cast<u32>(number >> 32);
  auto c2 = static_cast<u32>(offset), c3 = static_cast<u32>(offset >> 32);
  auto k0 = static_cast<u32>(seed), k1 = static_cast<u32>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const u64 a = u64{0xD2511F53} * c0, b = u64{0xCD9E8D57} * c2;
    c0 = static_cast<u32>(b >> 32) ^ c1 ^ k0;
    c1 = static_cast<u32>(b);
    c2 = static_cast<u32>(a >> 32) ^ c3 ^ k1;
    c3 = static_cast<u32>(a);
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  return {{c0, c1, c2, c3}};
}

}  // namespace torch_remote::worker::cuda
