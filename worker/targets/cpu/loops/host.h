#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "worker/targets/cpu/loops/levels.h"

namespace torch_remote::worker {

// The targets that this machine's processor runs, best first: "x86-64-v4", "x86-64-v3"; or "aarch64". Empty: neither
// kernels nor loops support it.
std::span<const std::string_view> host_targets();

// The loops of a target; null if it has none.
template <typename Loops, size_t Count>
const Loops* loops_for(std::string_view target, const LoopLevel<Loops> (&levels)[Count]) {
  for (const auto& level : levels) {
    if (target == level.target) return level.loops;
  }
  return nullptr;
}

// All that this machine runs, best first.
template <typename Loops, size_t Count>
std::vector<LoopLevel<Loops>> loops_of_host(const LoopLevel<Loops> (&levels)[Count]) {
  std::vector<LoopLevel<Loops>> all;
  for (const std::string_view target : host_targets()) {
    if (const Loops* loops = loops_for(target, levels)) all.push_back({target.data(), loops});
  }
  return all;
}

// The name of the loops' target.
template <typename Loops, size_t Count>
std::string_view target_of(const Loops* loops, const LoopLevel<Loops> (&levels)[Count]) {
  for (const auto& level : levels) {
    if (loops == level.loops) return level.target;
  }
  return "no target";
}

}  // namespace torch_remote::worker
