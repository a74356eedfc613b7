#pragma once

#include <span>
#include <vector>

#include "codegen/gpu/memory.h"
#include "codegen/gpu/recipe.h"

// The values of a kernel at the current position: scalars, or one value for each lane of each slot of the thread.
namespace torch_remote::codegen::gpu {

class Values {
 public:
  Values(GpuOps& ops, Memory& memory, const Kernel& kernel, const cpu::Plan& plan, uint32_t lanes, size_t slots);

  // Reductions are set from outside; `define` skips them.
  void set(uint32_t value, MlirValue scalar) { scalars_[value] = scalar; }
  void set_lanes(uint32_t value, size_t slot, MlirValues lanes) { lanes_[slot][value] = std::move(lanes); }

  // Defines scalars, at a position of the outer column dim if there is one.
  void define(std::span<const uint32_t> values, MlirValue outer = {});
  // Defines lanes, for each slot at its position. Values that are defined already are skipped. Loads come first. If
  // they need few registers, the loads of several slots come together, so that they overlap.
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
  MlirValue constant(const Value& value);
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
