#pragma once

#include <span>
#include <vector>

#include "codegen/gpu/memory.h"
#include "codegen/gpu/recipe.h"

// The values of a kernel that have been emitted at the current position. A value is a scalar, or vectors. A thread
// holds `slots` vectors of `lanes` elements each (Recipe::slots, Recipe::vector in launch.h). "Lane" means an element
// of such a vector here, not a lane of a warp.
namespace torch_remote::codegen::gpu {

class Values {
 public:
  Values(GpuOps& ops, Memory& memory, const Kernel& kernel, const cpu::Plan& plan, uint32_t lanes, size_t slots);

  // The caller emits reductions and sets them; `define` skips them.
  void set(uint32_t value, MlirValue scalar) { scalars_[value] = scalar; }
  void set_lanes(uint32_t value, size_t slot, MlirValues lanes) { lanes_[slot][value] = std::move(lanes); }

  // Emits these values as scalars. `outer`: the position along the outer column dim, if there is one.
  void define(std::span<const uint32_t> values, MlirValue outer = {});
  // Emits these values as vectors; positions[i] is the position of slot i. Skips values that are emitted already. Loads
  // come first. If they need few registers, loads of several slots are emitted together, so that they overlap.
  void define_lanes(std::span<const uint32_t> values, std::span<const EmitPosition> positions);
  void clear_lanes();

  MlirValue scalar(uint32_t value) const { return scalars_[value]; }
  MlirValue lane(uint32_t value, size_t slot, uint32_t lane) const;
  MlirValues lanes(uint32_t value, size_t slot) const;
  Memory::Indices indices(const std::vector<uint32_t>& values, size_t slot) const;

 private:
  ir::DType type(uint32_t value) const { return kernel_.values[value].type; }
  bool is_vector(uint32_t value) const { return plan_.scopes[value] == cpu::Scope::kVector; }
  bool is_early_load(uint32_t value) const;
  void define_in(uint32_t value, size_t slot, const EmitPosition& at);
  MlirValue compose(const Value& value, llvm::function_ref<MlirValue(uint32_t)> get);

  GpuOps& ops_;
  LlvmBuilder& b_;
  Memory& memory_;
  const Kernel& kernel_;
  const cpu::Plan& plan_;
  const uint32_t width_;
  std::vector<MlirValue> scalars_;
  std::vector<std::vector<MlirValues>> lanes_;  // indexed by slot, then by value
};

}  // namespace torch_remote::codegen::gpu
