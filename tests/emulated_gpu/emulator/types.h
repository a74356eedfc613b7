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
  size_t capacity = size_t{8} << 30;  // bytes of reserved address space
  // Bits that are set in addresses that kernels get (`address | tag`), so that they are not valid on this CPU. Any
  // access faults, except by a kernel of this device, which clears the bits.
  uint64_t tag = 0;
  bool tracked = true;  // launches may be checked; this takes eight more bytes per byte
};

struct LaunchOptions {
  // Selects the order in which the threads of a block continue after a barrier or a warp operation, and the order of
  // blocks. 0: ascending.
  uint64_t seed = 0;
  uint32_t host_threads = 1;  // threads that execute blocks; checked mode uses one
  // Examines each access and each loop iteration. Findings are: races (independent of execution order), and accesses
  // that are out of bounds, misaligned, or read unwritten memory. Execution takes twice as long if threads synchronize
  // often, otherwise up to thirty times as long.
  bool checked = false;
  // Time limit of a launch. A longer one is a finding: an endless loop, or a wait that cannot end.
  double seconds = 20;
  uint64_t max_loop_iterations = uint64_t{1} << 26;  // loop iterations per thread in checked mode
};

// Properties of a kernel, as cuFuncGetAttribute returns them.
struct KernelAttributes {
  size_t shared_bytes = 0;              // static shared memory
  uint32_t max_threads = 1024;          // per block
  bool synchronizes = false;            // its threads wait for each other at barriers or in warp operations
  std::vector<size_t> parameters = {};  // bytes of each
};

}  // namespace torch_remote::codegen::emulator
