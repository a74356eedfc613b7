#pragma once

#include <array>
#include <chrono>
#include <cstdint>

// How soon the other end comes, learned from how long each wait took: a wait that ends while this end still looks costs
// nobody a wake-up (some 50 µs, more where a core has to be woken too).
namespace torch_remote::remote {

// Not thread safe.
class Pace {
 public:
  using Duration = std::chrono::nanoseconds;

  // What looking may cost: the most of a core's time that one wait looks at its beginning, and around the time at which
  // it is expected to end.
  static constexpr Duration kMostAtFirst = std::chrono::microseconds(512);
  static constexpr Duration kMostAround = std::chrono::microseconds(800);
  // Waits that take longer are not foreseen: somebody thinks, or has nothing to do.
  static constexpr Duration kFar = std::chrono::milliseconds(50);

  // Times since a wait began: look until `first`; then sleep, but for the time from `from` to `until` (both 0: sleep
  // on).
  struct Plan {
    Duration first{0};
    Duration from{0};
    Duration until{0};
  };
  Plan plan() const { return suspended_ > 0 ? Plan() : plan_; }

  // A wait ended with what it waited for.
  void came(Duration after);
  // Somebody else needs the core: no looking for a while. It would take the core from them now and then, and give it
  // back late.
  void contended();

 private:
  // Waits of less than 8 µs, 16 µs, ..., kMostAtFirst; the last is for all others.
  static constexpr size_t kBuckets = 8;

  Duration best_first() const;

  Plan plan_;
  std::array<uint32_t, kBuckets> weights_{};  // of recent waits; they sum up to at most 2^16
  // Of those that took longer than `first`: mean and mean deviation, in ns (as TCP's round trip time: V. Jacobson,
  // "Congestion Avoidance and Control", 1988).
  int64_t mean_ = 0;
  int64_t deviation_ = 0;
  uint32_t suspended_ = 0;  // waits
  uint32_t suspend_next_ = 0;
};

}  // namespace torch_remote::remote
