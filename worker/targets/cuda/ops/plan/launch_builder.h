#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "worker/targets/cuda/ops/plan/op_plan.h"

namespace torch_remote::worker::cuda {

// The most blocks of a launch in which each block loops over items.
inline constexpr int64_t kMaxBlocks = 1 << 16;
// The most blocks that a launch may have at all.
inline constexpr int64_t kMaxGrid = 0x7FFFFFFF;

// The number of blocks of 256 threads for so many items; threads loop if there are more.
inline int64_t blocks_for(int64_t items) {
  constexpr int64_t kMax = 4096;
  return items <= 0 ? 0 : items > kMax * 256 ? kMax : (items + 255) / 256;
}

// Builds a launch of `grid` blocks, and fills in those words of its arguments that are known only in a run. If `grid`
// is 0 or less, there is no launch. The launch becomes a step at the end of the full expression, and cannot be used
// after that. So steps that its operands add (PlanBuilder::packed, PlanBuilder::copy) always come before it.
template <typename T>
class [[nodiscard]] LaunchBuilder {
 public:
  LaunchBuilder(std::vector<OpStep>* steps, KernelFile file, const char* kernel, const T& arguments, int64_t grid,
                unsigned block = 256)
      : steps_(steps), arguments_(arguments) {
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) % 8 == 0);
    launch_.file = file;
    launch_.kernel = kernel;
    launch_.grid = grid <= 0 ? 0 : static_cast<unsigned>(std::min(grid, kMaxGrid + 1));
    launch_.block = block;
    launch_.words.resize(sizeof(T) / 8);
    std::memcpy(launch_.words.data(), &arguments, sizeof(T));
  }
  ~LaunchBuilder() {
    if (launch_.grid != 0) steps_->emplace_back(std::move(launch_));
  }
  LaunchBuilder(const LaunchBuilder&) = delete;
  LaunchBuilder& operator=(const LaunchBuilder&) = delete;

  template <typename U>
  LaunchBuilder&& at(U T::* member, const Location& location) && {
    add(word(&(arguments_.*member)), location);
    return std::move(*this);
  }
  template <typename F>
  LaunchBuilder&& at_word(F&& member, const Location& location) && {
    add(word(member(arguments_)), location);
    return std::move(*this);
  }
  // Fills in elements of an array.
  template <typename F>
  LaunchBuilder&& at_words(F&& first, std::span<const Location> locations) && {
    for (size_t i = 0; i < locations.size(); ++i) add(word(first(arguments_)) + i, locations[i]);
    return std::move(*this);
  }
  // Fills in several members with their locations.
  template <typename Members>
  LaunchBuilder&& at_each(const Members& members) && {
    for (const auto& [member, location] : members) add(word(&(arguments_.*member)), location);
    return std::move(*this);
  }
  // Fills in consecutive members with the values of these symbols. `numbers`: the member before them, which can hold
  // their address in GPU memory.
  template <typename U>
  LaunchBuilder&& parameters(U T::* numbers, std::span<const ir::Sym> symbols) && {
    launch_.scalars_word = word(&(arguments_.*numbers));
    for (const ir::Sym symbol : symbols) {
      launch_.parameters.push_back({*launch_.scalars_word + 1 + launch_.parameters.size(), symbol});
    }
    return std::move(*this);
  }
  template <typename U>
  LaunchBuilder&& parameters(U T::* numbers, std::initializer_list<ir::Sym> symbols) && {
    return std::move(*this).parameters(numbers, std::span<const ir::Sym>(symbols.begin(), symbols.size()));
  }
  template <typename F>
  LaunchBuilder&& failure(F&& member, bool can_fail = true) && {
    if (can_fail) launch_.failure = word(member(arguments_));
    return std::move(*this);
  }

 private:
  size_t word(const void* member) const {
    return static_cast<size_t>(static_cast<const char*>(member) - reinterpret_cast<const char*>(&arguments_)) / 8;
  }
  void add(size_t word, const Location& location) {
    if (location.buffer != kNoLocation) launch_.addresses.push_back({word, location});
  }

  std::vector<OpStep>* const steps_;
  OpLaunch launch_;
  const T arguments_;
};

}  // namespace torch_remote::worker::cuda
