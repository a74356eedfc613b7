#pragma once

#include <algorithm>
#include <cstddef>
#include <span>

namespace torch_remote::worker::cuda {

// Times of shorter calls show how fast the host queues them, and not how long the GPU takes.
inline constexpr float kMinTimedMilliseconds = 0.02F;
// Another algorithm is used only if it takes less than this part of the time of the heuristic's first choice.
inline constexpr float kMaxTimePart = 0.97F;

// Returns which algorithm to use. `milliseconds`: the time of one call of each algorithm, the heuristic's first choice
// first. Must not be empty.
inline size_t fastest(std::span<const float> milliseconds) {
  const auto least = std::ranges::min_element(milliseconds);
  const bool gains = milliseconds[0] >= kMinTimedMilliseconds && *least < kMaxTimePart * milliseconds[0];
  return gains ? static_cast<size_t>(least - milliseconds.begin()) : 0;
}

}  // namespace torch_remote::worker::cuda
