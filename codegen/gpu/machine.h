#pragma once

#include <cstdint>

#include "codegen/cpu/ops.h"

// What a thread of a GPU has beside scalar arithmetic: where it is, and how it meets others.
namespace torch_remote::codegen::gpu {

using cpu::MlirValue;
using cpu::MlirValues;

constexpr unsigned kGlobalSpace = 1, kSharedSpace = 3;  // NVPTX's address spaces

class Machine : public cpu::Ops {
 public:
  explicit Machine(mlir::ImplicitLocOpBuilder& builder) : cpu::Ops(builder, cpu::Features{}) {}

  // Of this thread in its block, of the block in the grid; i64.
  MlirValue thread_x();
  MlirValue thread_y();
  MlirValue threads_x();
  MlirValue threads_y();
  MlirValue block();
  MlirValue blocks();

  void barrier();       // all threads of the block
  void warp_barrier();  // all lanes of the warp

  // What another lane of the warp has, for a value of any type. All lanes come here.
  MlirValue from_across(MlirValue x, uint32_t distance);  // lane ^ distance
  MlirValue from_above(MlirValue x, uint32_t distance);   // lane + distance; its own if there is none
  MlirValue from_first(MlirValue x);                      // lane 0

  MlirValue i32(int64_t value) { return integer(b.getI32Type(), value); }
  MlirValue truth(bool value) { return integer(b.getI1Type(), value ? 1 : 0); }
  MlirValue less_than(MlirValue x, MlirValue y) { return compare(mlir::LLVM::ICmpPredicate::slt, x, y); }
  MlirValue is_zero(MlirValue x);
  MlirValue divide(MlirValue x, MlirValue y);  // of numbers that are not negative
  MlirValue divide_up(MlirValue x, MlirValue y);

  // Those of Ops with the machine's own instructions.
  MlirValue to_memory(MlirValue x, ir::DType memory);
  MlirValue random(MlirValue seed, MlirValue offset, MlirValue number);
  // For index = begin, begin + step, ... below end.
  MlirValues loop(MlirValue begin, MlirValue end, MlirValue step, mlir::ValueRange carried, Body body);
  // The arms of a branch one of which gives what there is without it.
  MlirValues only_if_gives(MlirValue condition, mlir::ValueRange otherwise, llvm::function_ref<MlirValues()> yes);

 private:
  template <typename Register>
  MlirValue special();
  template <typename Shuffle>
  MlirValue in_words(MlirValue x, Shuffle&& shuffle);
};

}  // namespace torch_remote::codegen::gpu
