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

  // Index of this thread in its block, size of the block, index of the block, size of the grid; i64.
  MlirValue thread_x();
  MlirValue thread_y();
  MlirValue threads_x();
  MlirValue threads_y();
  MlirValue block();
  MlirValue blocks();

  void barrier();       // for all threads of the block
  void warp_barrier();  // for all lanes of the warp

  // The value of another lane of the warp, of any type. All lanes must execute this.
  MlirValue shuffle_xor(MlirValue x, uint32_t distance);   // lane ^ distance
  MlirValue shuffle_down(MlirValue x, uint32_t distance);  // lane + distance; this lane's own value if there is none
  MlirValue broadcast_first(MlirValue x);                  // lane 0

  // These replace functions of Ops, using the GPU's instructions.
  MlirValue to_memory(MlirValue x, ir::DType memory);
  MlirValue random(MlirValue seed, MlirValue offset, MlirValue number);

 private:
  template <typename Register>
  MlirValue special();
  template <typename Shuffle>
  MlirValue in_words(MlirValue x, Shuffle&& shuffle);
};

}  // namespace torch_remote::codegen::gpu
