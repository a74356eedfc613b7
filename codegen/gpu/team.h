#pragma once

#include <string>
#include <vector>

#include "codegen/cpu/reductions.h"
#include "codegen/gpu/launch.h"
#include "codegen/gpu/machine.h"

// Reductions across threads, in the order of docs/loop_ir.md.
namespace torch_remote::codegen::gpu {

// Memory that a block shares: places of 8 bytes.
struct SharedMemory {
  std::string name;
  uint32_t places = 0;
};

// Partial results of one reduction: of each lane a value, and for argmax its place.
struct Partial {
  const Value* reduce = nullptr;
  ir::DType dtype = ir::DType::kFloat32;  // of what is reduced
  std::vector<MlirValues> lanes;
};

class Team {
 public:
  Team(Machine& machine, const Kernel& kernel, SharedMemory* shared)
      : machine_(machine), reductions_(machine), kernel_(kernel), shared_(shared) {}

  Partial begin(const Value& reduce, uint32_t lanes);
  // With one more element in a lane, if that is a place. `place` is for argmax.
  void accumulate(Partial& partial, uint32_t lane, MlirValue x, MlirValue place, MlirValue valid);
  // Of the same lanes, `later` behind it.
  void combine(Partial& partial, const Partial& later);

  // Over all threads of a row: a warp, or as many warps as the block has. Each gets the results. Each call has shared
  // memory of its own.
  std::vector<MlirValue> reduce(std::vector<Partial>& partials);
  // All threads of a row come here.
  void barrier();

  // Of each column of a block, of threads that stand one behind the other (y), `folds` of them. All get the result.
  MlirValue fold(const Value& reduce, MlirValue x, uint32_t columns, uint32_t folds);

  MlirValue neutral(const Value& reduce);
  MlirValue combine(const Value& reduce, MlirValue x, MlirValue y);

 private:
  static bool is_arg(const Value& reduce) { return cpu::Reductions::parts(reduce) == 2; }
  // Whether it matters which of two numbers comes first: of two zeros.
  static bool has_sides(const Partial& partial);
  ir::DType part_type(const Partial& partial, size_t part) const;
  void fold_lanes(Partial& partial);
  void fold_warp(Partial& partial, uint32_t threads);
  MlirValue place(uint32_t first, MlirValue offset);
  MlirValues several_warps(std::vector<Partial>& partials);

  Machine& machine_;
  cpu::Reductions reductions_;
  const Kernel& kernel_;
  SharedMemory* shared_;
};

}  // namespace torch_remote::codegen::gpu
