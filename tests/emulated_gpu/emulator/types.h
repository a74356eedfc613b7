#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace torch_remote::codegen::emulator {

struct Dim3 {
  uint32_t x = 1, y = 1, z = 1;
  uint64_t count() const { return uint64_t{x} * y * z; }
};

struct DeviceOptions {
  size_t capacity = size_t{8} << 30;  // bytes; addresses are reserved for so much memory
  // Bits that addresses have which kernels are given (`address | tag`), so that they are no addresses of this CPU, and
  // whoever looks there but a kernel of this device faults. Kernels take them off.
  uint64_t tag = 0;
  bool tracked = true;  // launches may be checked; else memory costs an eighth
};

struct LaunchOptions {
  // In which order the threads of a block go on after a barrier or a warp operation, and in which order blocks are
  // done. 0: as they are numbered.
  uint64_t seed = 0;
  uint32_t host_threads = 1;  // that do blocks; checked mode has one
  // Looks at each access and each turn of a loop, and says what is wrong: races whatever the order, accesses out of
  // bounds, misaligned, or to what was never written. Twice as slow where threads meet often, else up to thirty times.
  bool checked = false;
  // A launch that takes longer is wrong: an endless loop, or one that waits for what cannot come.
  double seconds = 20;
  uint64_t turns = uint64_t{1} << 26;  // of loops, that one thread may take in checked mode
};

// What a kernel needs, as cuFuncGetAttribute tells it.
struct KernelFacts {
  size_t shared_bytes = 0;              // static
  uint32_t max_threads = 1024;          // of a block
  bool switches = false;                // its threads meet: at barriers or in warp operations
  std::vector<size_t> parameters = {};  // bytes of each
};

}  // namespace torch_remote::codegen::emulator
