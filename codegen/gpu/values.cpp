#include "codegen/gpu/values.h"

#include <algorithm>
#include <utility>

namespace torch_remote::codegen::gpu {

// Most registers that wait for loads at the same time.
constexpr uint32_t kMaxLoadRegisters = 24;

Values::Values(GpuOps& ops, Memory& memory, const Kernel& kernel, const cpu::Plan& plan, uint32_t lanes, size_t slots)
    : ops_(ops),
      b_(ops.b),
      memory_(memory),
      kernel_(kernel),
      plan_(plan),
      width_(lanes),
      scalars_(kernel.values.size()),
      lanes_(slots, std::vector<MlirValues>(kernel.values.size())) {}

void Values::clear_lanes() {
  for (auto& slot : lanes_) std::ranges::fill(slot, MlirValues());
}

MlirValue Values::lane(uint32_t value, size_t slot, uint32_t lane) const {
  return is_vector(value) ? lanes_[slot][value][lane] : scalars_[value];
}

MlirValues Values::lanes(uint32_t value, size_t slot) const {
  return is_vector(value) ? lanes_[slot][value] : MlirValues(width_, scalars_[value]);
}

Memory::Indices Values::indices(const std::vector<uint32_t>& values, size_t slot) const {
  Memory::Indices result;
  for (const uint32_t index : values) {
    result.push_back(is_vector(index) ? lanes_[slot][index] : MlirValues{scalars_[index]});
  }
  return result;
}

void Values::define(std::span<const uint32_t> values, MlirValue outer) {
  for (const uint32_t v : values) {
    const Value& value = kernel_.values[v];
    switch (value.kind) {
      case Kind::kReduce:
        break;
      case Kind::kConstant:
        scalars_[v] = ops_.constant(value, ops_.type(value.type));
        break;
      case Kind::kScalar:
        scalars_[v] = memory_.scalar(value.a);
        break;
      case Kind::kIndex:
        scalars_[v] = value.a < kernel_.rows ? memory_.row_place(value.a) : outer;
        break;
      case Kind::kLoad:
        scalars_[v] = memory_.load(value.operand, indices(value.indices, 0));
        break;
      default:
        scalars_[v] = compose(value, [&](uint32_t input) { return scalars_[input]; });
    }
  }
}

// Whether it is a load whose address does not depend on other vector values.
bool Values::is_early_load(uint32_t value) const {
  return kernel_.values[value].kind == Kind::kLoad &&
         std::ranges::none_of(kernel_.values[value].indices, [&](uint32_t index) { return is_vector(index); });
}

void Values::define_lanes(std::span<const uint32_t> values, std::span<const EmitPosition> positions) {
  uint32_t registers = 1;  // for the loads of one slot
  for (const uint32_t v : values) {
    if (is_early_load(v)) registers += width_ * ((ir::item_size(type(v)) + 3) / 4);
  }
  const size_t together = std::max<size_t>(1, kMaxLoadRegisters / registers);
  for (size_t first = 0; first < positions.size(); first += together) {
    const size_t end = std::min(positions.size(), first + together);
    for (const bool early : {true, false}) {
      for (size_t slot = first; slot < end; ++slot) {
        for (const uint32_t v : values) {
          if (lanes_[slot][v].empty() && is_early_load(v) == early) define_in(v, slot, positions[slot]);
        }
      }
    }
  }
}

void Values::define_in(uint32_t v, size_t slot, const EmitPosition& at) {
  const Value& value = kernel_.values[v];
  MlirValues result;
  switch (value.kind) {
    case Kind::kReduce:
      return;
    case Kind::kLoad:
      result = memory_.load_lanes(value.operand, indices(value.indices, slot), at);
      break;
    case Kind::kIndex:
      for (uint32_t e = 0; e < width_; ++e) result.push_back(b_.add(at.column, b_.i64(e)));
      break;
    default:
      for (uint32_t e = 0; e < width_; ++e) {
        result.push_back(compose(value, [&](uint32_t input) { return lane(input, slot, e); }));
      }
  }
  lanes_[slot][v] = std::move(result);
}

// Computes a value from earlier ones.
MlirValue Values::compose(const Value& value, llvm::function_ref<MlirValue(uint32_t)> get) {
  if (value.kind == Kind::kRandom) return ops_.random(get(value.a), get(value.b), get(value.c));
  return ops_.computed(kernel_.values, value, get);
}

}  // namespace torch_remote::codegen::gpu
