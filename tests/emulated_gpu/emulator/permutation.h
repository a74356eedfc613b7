#pragma once

#include <cstdint>
#include <numeric>

namespace torch_remote::codegen::emulator {

// A permutation of the numbers below `size`, selected by a seed. Seed 0 is the identity.
class Permutation {
 public:
  Permutation(uint64_t size, uint64_t seed) : size_(size) {
    if (seed == 0 || size < 2) return;
    const uint64_t mixed = (seed + 1) * 0x9E3779B97F4A7C15u;
    offset_ = (mixed >> 32) % size;
    step_ = (mixed & 0xFFFFFFFF) % size;
    while (step_ == 0 || std::gcd(step_, size) != 1) step_ = (step_ + 1) % size;
  }
  uint64_t operator()(uint64_t i) const {
    return static_cast<uint64_t>((static_cast<unsigned __int128>(i) * step_ + offset_) % size_);
  }

 private:
  uint64_t size_, step_ = 1, offset_ = 0;
};

}  // namespace torch_remote::codegen::emulator
