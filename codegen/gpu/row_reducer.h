#pragma once

#include <string>
#include <vector>

#include "codegen/cpu/reductions.h"
#include "codegen/gpu/gpu_ops.h"
#include "codegen/gpu/launch.h"

// Reductions across threads, in the order of docs/loop_ir.md.
namespace torch_remote::codegen::gpu {

// Shared memory of a block; `places` counts words of 8 bytes.
struct SharedMemory {
  std::string name;
  uint32_t places = 0;
};

// A thread's partial results of one reduction: for each lane a value, and for argmax and argmin its position (the
// row-major index among the columns).
struct Partial {
  const Value* reduce = nullptr;
  ir::DType dtype = ir::DType::kFloat32;  // type of the partial values
  std::vector<MlirValues> lanes;
};

class RowReducer {
 public:
  RowReducer(GpuOps& ops, const Kernel& kernel, SharedMemory* shared)
      : ops_(ops), b_(ops.b), reductions_(ops), kernel_(kernel), shared_(shared) {}

  // The partial result of no elements. `lanes` must be a power of two.
  Partial begin(const Value& reduce, uint32_t lanes);
  // Combines one element with a lane's result, if `valid`. `place`: the element's position, for argmax and argmin.
  void accumulate(Partial& partial, uint32_t lane, MlirValue x, MlirValue place, MlirValue valid);
  // Adds the partial results of later elements in the same lanes.
  void combine(Partial& partial, const Partial& later);

  // Reduces each partial result over its lanes and over all threads of a row. These are one warp, or all warps of the
  // block; all of them must call this. All threads get the results: one value for each partial result, or its position
  // for argmax and argmin. Changes `partials`. Each call has its own shared memory.
  std::vector<MlirValue> reduce(std::vector<Partial>& partials);
  // Synchronizes all threads of a row.
  void barrier();

  // Reduces `x` over the threads of a block that have the same x index. The block has `columns` by `folds` threads, and
  // `folds` is a power of two. All threads get the result of their column. All calls use the same shared memory.
  MlirValue fold(const Value& reduce, MlirValue x, uint32_t columns, uint32_t folds);

  // For partial results of one value, which has the type of `reduce`: the result of no elements, and a combination.
  MlirValue neutral(const Value& reduce);
  MlirValue combine(const Value& reduce, MlirValue x, MlirValue y);

 private:
  static bool is_arg(const Value& reduce) { return cpu::Reductions::parts(reduce) == 2; }
  // Whether a result depends on the order of two operands. The max and min of floats do: 0.0 and -0.0 compare equal.
  static bool is_order_sensitive(const Partial& partial);
  ir::DType part_type(const Partial& partial, size_t part) const;
  // Combines the lanes, of which one remains.
  void fold_lanes(Partial& partial);
  // Reduces over the first `threads` threads of a warp. All of its threads get the result.
  void fold_warp(Partial& partial, uint32_t threads);
  // The address of word `first` + `offset` of the shared memory.
  MlirValue place(uint32_t first, MlirValue offset);
  // Reduces the results of the block's warps, in shared memory.
  MlirValues several_warps(std::vector<Partial>& partials);

  GpuOps& ops_;
  LlvmBuilder& b_;
  cpu::Reductions reductions_;
  const Kernel& kernel_;
  SharedMemory* shared_;
};

}  // namespace torch_remote::codegen::gpu
