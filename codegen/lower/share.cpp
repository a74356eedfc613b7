#include <algorithm>

#include "codegen/lower/lower.h"

namespace torch_remote::codegen {

namespace {

bool may_share(const Launch& launch, uint32_t made, uint32_t source) {
  const Kernel& kernel = launch.kernel;
  uint32_t to = kNone;
  for (uint32_t i = 0; i < launch.operands.size(); ++i) {
    if (launch.operands[i].buffer != made) continue;
    if (to != kNone) return false;
    to = i;
  }
  if (to == kNone || kernel.operands[to].indexed != 0 || launch.operands[to].packed) return false;
  const Store* stored = nullptr;
  for (const Store& store : kernel.stores) {
    if (store.operand == to) stored = &store;
  }
  if (stored == nullptr) return false;
  const Binding& place = launch.operands[to];
  bool loads = false;
  for (uint32_t i = 0; i < launch.operands.size(); ++i) {
    const Binding& other = launch.operands[i];
    if (other.buffer != source) continue;
    loads = true;
    const bool same = other.offset == place.offset && other.strides == place.strides && other.outer == place.outer &&
                      !other.packed && kernel.operands[i].indexed == 0 &&
                      ir::item_size(kernel.operands[i].dtype) == ir::item_size(kernel.operands[to].dtype);
    if (!same) return false;
    for (const Store& store : kernel.stores) {
      if (store.operand == i) return false;
    }
  }
  // A row's last loads are in the last loop over its columns, where each element is loaded before its result is stored.
  // Other elements are at other positions, because distinct points store to distinct positions.
  const Schedule order = schedule(kernel);
  return loads && (order.phases <= 1 || order.values[stored->value].phase + 1 == order.phases);
}

}  // namespace

bool may_share(std::span<const Launch> launches, uint32_t made, uint32_t source) {
  const Launch* both = nullptr;
  for (const Launch& launch : launches) {
    const auto has = [&](const Binding& binding) { return binding.buffer == made || binding.buffer == source; };
    if (std::ranges::none_of(launch.operands, has)) continue;
    if (both != nullptr) return false;
    both = &launch;
  }
  return both != nullptr && may_share(*both, made, source);
}

}  // namespace torch_remote::codegen
