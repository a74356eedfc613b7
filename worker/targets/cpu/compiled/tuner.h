#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace torch_remote::worker::kernels {

// Finds the fastest of several algorithms. They are timed in turn, so that disturbances affect all of them.
template <typename Algorithm>
class Tuner {
 public:
  struct Alternative {
    Algorithm algorithm;
    double gain = 1;  // It is chosen if it takes at most this share of the first algorithm's time.
  };
  // The first algorithm is chosen if no other is faster. Its gain is not used.
  explicit Tuner(std::vector<Alternative> alternatives) {
    for (const Alternative& alternative : alternatives) tried_.push_back({alternative});
    close_if_done();
  }

  // Whether more times are needed. A single algorithm need not be timed.
  bool needs_samples() const { return needs_samples_; }
  // The algorithm that is executed next.
  Algorithm next() const { return std::ranges::min_element(tried_, {}, &Tried::count)->alternative.algorithm; }
  // Adds the time of an execution with the algorithm that `next` returned.
  void add(uint64_t ns) {
    Tried& tried = *std::ranges::min_element(tried_, {}, &Tried::count);
    tried.times[tried.count++] = ns;
    close_if_done();
  }
  // Removes an algorithm that proved to be impossible. At least one must remain.
  void drop(Algorithm algorithm) {
    std::erase_if(tried_, [&](const Tried& tried) { return tried.alternative.algorithm == algorithm; });
    close_if_done();
  }

  // The result once needs_samples() is false, however much the times vary.
  Algorithm fastest() const {
    const Alternative& first = tried_.front().alternative;
    const auto plain = static_cast<double>(ns(first.algorithm));
    double least = plain;
    Algorithm fastest = first.algorithm;
    for (size_t i = 1; i < tried_.size(); ++i) {
      const Alternative& alternative = tried_[i].alternative;
      const auto took = static_cast<double>(ns(alternative.algorithm));
      if (took == 0 || took > alternative.gain * plain || took >= least) continue;
      least = took;
      fastest = alternative.algorithm;
    }
    return fastest;
  }
  // The same, but the first algorithm if the times are not reliable.
  Algorithm best() const { return is_reliable() ? fastest() : tried_.front().alternative.algorithm; }
  // Whether the times are reliable; on a busy machine they may not be.
  bool is_reliable() const {
    return std::ranges::all_of(tried_, [](const Tried& tried) {
      return tried.count >= kSamples && static_cast<double>(tried.least(kRank)) <=
                                            kSpread * static_cast<double>(std::max<uint64_t>(1, tried.least(0)));
    });
  }
  // An algorithm's time, or 0 while it is unknown. It is one of the smallest times, which show what the machine can do.
  // The very smallest may be luck.
  uint64_t ns(Algorithm algorithm) const {
    const auto found =
        std::ranges::find_if(tried_, [&](const Tried& tried) { return tried.alternative.algorithm == algorithm; });
    return found == tried_.end() || found->count < kSamples ? 0 : found->least(kRank);
  }

  // Each algorithm is timed kSamples times, and up to kMostSamples times until the times are reliable. The first time
  // does not count, because code and data are not in the caches yet.
  static constexpr uint32_t kSamples = 8, kMostSamples = 24;

 private:
  // An algorithm's time is the element of this rank of its times in ascending order. Times are reliable if it is at
  // most kSpread times the smallest one.
  static constexpr size_t kRank = 2;
  static constexpr double kSpread = 1.25;

  struct Tried {
    Alternative alternative;
    uint32_t count = 0;
    std::array<uint64_t, kMostSamples> times{};

    // The n-th smallest of the times, without the first one.
    uint64_t least(size_t n) const {
      std::array<uint64_t, kMostSamples> sorted = times;
      const auto begin = sorted.begin() + 1;
      std::nth_element(begin, begin + static_cast<std::ptrdiff_t>(n), sorted.begin() + count);
      return sorted[1 + n];
    }
  };

  void close_if_done() {
    const uint32_t count = tried_.empty() ? 0 : std::ranges::min(tried_, {}, &Tried::count).count;
    needs_samples_ = tried_.size() > 1 && (count < kSamples || (count < kMostSamples && !is_reliable()));
  }

  std::vector<Tried> tried_;
  bool needs_samples_ = true;
};

}  // namespace torch_remote::worker::kernels
