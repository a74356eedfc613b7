#pragma once

#include <cstdint>

#include "codegen/cpu/ops.h"

// The operations of a GPU thread: scalar arithmetic, its position in the grid, and communication with other threads.
namespace torch_remote::codegen::gpu {

using cpu::LlvmBuilder;
using cpu::MlirValue;
using cpu::MlirValues;

constexpr unsigned kGlobalSpace = 1, kSharedSpace = 3;  // address spaces of NVPTX

class GpuOps : public cpu::Ops {
 public:
  explicit GpuOps(LlvmBuilder& builder) : cpu::Ops(builder, cpu::Features{}) {}

  // Index of this thread in its block, size of the block, index of the block (x), size of the grid (x). All are i64.
  MlirValue thread_x();
  MlirValue thread_y();
  MlirValue threads_x();
  MlirValue threads_y();
  MlirValue block();
  MlirValue blocks();

  void barrier();       // All threads of the block must execute it.
  void warp_barrier();  // All lanes of the warp must execute it.

  // The value of another lane of the warp, of any type that LoopIR's values have. All 32 lanes must execute this.
  MlirValue shuffle_xor(MlirValue x, uint32_t distance);   // lane ^ distance
  MlirValue shuffle_down(MlirValue x, uint32_t distance);  // lane + distance; this lane's own value if there is none
  MlirValue broadcast_first(MlirValue x);                  // lane 0

  // These hide functions of Ops, and use the GPU's instructions. The functions of Ops are not virtual, so a call by a
  // reference to Ops does not reach these.
  MlirValue to_memory(MlirValue x, ir::DType memory);
  MlirValue random(MlirValue seed, MlirValue offset, MlirValue number);

 private:
  template <typename Register>
  MlirValue special();
  template <typename Shuffle>
  MlirValue in_words(MlirValue x, Shuffle&& shuffle);
};

}  // namespace torch_remote::codegen::gpu
