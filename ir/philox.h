#pragma once

#include <array>
#include <cstdint>

// Philox4x32-10, a counter-based generator (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3",
// SC 2011).
namespace torch_remote::ir {

// The random words of one op: a pure function of seed, offset and block number. A block has four words.
class Philox {
 public:
  Philox(uint64_t seed, uint64_t offset) : seed_(seed), offset_(offset) {}

  std::array<uint32_t, 4> block(uint64_t number) const {
    uint32_t c0 = static_cast<uint32_t>(number), c1 = static_cast<uint32_t>(number >> 32);
    uint32_t c2 = static_cast<uint32_t>(offset_), c3 = static_cast<uint32_t>(offset_ >> 32);
    uint32_t k0 = static_cast<uint32_t>(seed_), k1 = static_cast<uint32_t>(seed_ >> 32);
    for (int round = 0; round < 10; ++round) {
      const uint64_t a = uint64_t{0xD2511F53} * c0;
      const uint64_t b = uint64_t{0xCD9E8D57} * c2;
      c0 = static_cast<uint32_t>(b >> 32) ^ c1 ^ k0;
      c1 = static_cast<uint32_t>(b);
      c2 = static_cast<uint32_t>(a >> 32) ^ c3 ^ k1;
      c3 = static_cast<uint32_t>(a);
      k0 += 0x9E3779B9;
      k1 += 0xBB67AE85;
    }
    return {c0, c1, c2, c3};
  }

  // A seed for another generator, taken from a block that no random op reaches.
  uint64_t derived_seed() const {
    const auto words = block(~uint64_t{0});
    return uint64_t{words[1]} << 32 | words[0];
  }

 private:
  uint64_t seed_;
  uint64_t offset_;
};

}  // namespace torch_remote::ir
